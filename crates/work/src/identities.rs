//! [`Identities`]: who is who in a journalled run, and what is known to be done.

use std::collections::{HashMap, HashSet};

use crate::journal::{Fingerprint, JournalRecord};
use crate::machine::Index;

#[derive(Debug)]
pub(crate) struct Identities {
    /// What earlier processes have done, with its durable output. Each entry is used once: whoever
    /// restarts an item wants it done again.
    known: HashMap<Fingerprint, Option<String>>,
    /// What the journal says is done, by whichever process.
    recorded: HashSet<Fingerprint>,
    of: HashMap<Index, Fingerprint>,
    /// The last item with this identity.
    holder: HashMap<Fingerprint, Index>,
}

impl Identities {
    /// Reads what earlier processes have written. The last word on an item counts.
    pub(crate) fn new(records: Vec<JournalRecord>) -> Self {
        let mut known = HashMap::new();
        for record in records {
            match record {
                JournalRecord::Done { fingerprint, output, .. } => _ = known.insert(fingerprint, output),
                JournalRecord::Undone { fingerprint, .. } => _ = known.remove(&fingerprint),
            }
        }
        let recorded = known.keys().copied().collect();
        Self { known, recorded, of: HashMap::new(), holder: HashMap::new() }
    }

    pub(crate) fn of(&self, index: Index) -> Option<&Fingerprint> {
        self.of.get(&index)
    }

    pub(crate) fn holder(&self, identity: &Fingerprint) -> Option<Index> {
        self.holder.get(identity).copied()
    }

    pub(crate) fn add(&mut self, index: Index, identity: Fingerprint) {
        self.of.insert(index, identity);
        self.holder.insert(identity, index);
    }

    pub(crate) fn forget(&mut self, index: Index) {
        if let Some(identity) = self.of.remove(&index)
            && self.holder(&identity) == Some(index)
        {
            self.holder.remove(&identity);
        }
    }

    /// Whether an earlier process has done an item, and what it gave. Answers once.
    pub(crate) fn take_known(&mut self, index: Index) -> Option<Option<String>> {
        self.known.remove(self.of.get(&index)?)
    }

    /// Who an item is, if the journal says of it that it is done. Answers once.
    pub(crate) fn take_recorded(&mut self, index: Index) -> Option<Fingerprint> {
        self.recorded.take(self.of.get(&index)?)
    }

    /// The journal says so from now on.
    pub(crate) fn note(&mut self, record: &JournalRecord) {
        match record {
            JournalRecord::Done { fingerprint, .. } => _ = self.recorded.insert(*fingerprint),
            JournalRecord::Undone { fingerprint, .. } => _ = self.recorded.remove(fingerprint),
        }
    }
}
