//! The names of all items in one text: no allocation for each, and nothing to free at the end.

/// Where a name stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Name {
    start: u32,
    len: u32,
}

#[derive(Debug, Default)]
pub(super) struct Names {
    text: String,
}

impl Names {
    pub(super) fn get(&self, name: Name) -> &str {
        &self.text[name.start as usize..(name.start + name.len) as usize]
    }

    /// Whether there is room for another name of this length.
    pub(super) fn has_room_for(&self, name: &str) -> bool {
        u32::try_from(self.text.len() + name.len()).is_ok()
    }

    pub(super) fn add(&mut self, name: &str) -> Name {
        let start = self.text.len() as u32;
        self.text.push_str(name);
        Name { start, len: name.len() as u32 }
    }
}
