//! What is asked of a store, and how often: [`Operation`] and its tally [`Calls`].

use std::fmt;

/// The kinds of request that a [`FaultyStore`](crate::FaultyStore) tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A write of a whole object, conditional or not.
    Put,
    /// A read of an object or of one range of it.
    Get,
    /// A read of an object's metadata alone.
    Head,
    /// A listing, with or without delimiter or offset.
    List,
    /// The removal of one object.
    Delete,
    /// A copy inside the store. A rename is a copy and a delete.
    Copy,
    /// The start of a multipart upload.
    MultipartStart,
    /// One part of a multipart upload.
    MultipartPart,
    /// The step that makes a multipart upload visible.
    MultipartComplete,
    /// The step that discards a multipart upload.
    MultipartAbort,
}

impl Operation {
    /// Whether the operation changes the store, so that its answer may be lost after it took effect.
    pub fn is_write(self) -> bool {
        !matches!(self, Self::Get | Self::Head | Self::List)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Head => "head",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Copy => "copy",
            Self::MultipartStart => "multipart start",
            Self::MultipartPart => "multipart part",
            Self::MultipartComplete => "multipart complete",
            Self::MultipartAbort => "multipart abort",
        })
    }
}

/// How often each [`Operation`] was asked for, whatever became of it.
///
/// A listing counts once, when it is first polled, however many pages the store below it fetches; a
/// delete counts once for each object, though some stores send many in one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// [`Operation::Put`]
    pub puts: u64,
    /// [`Operation::Get`]
    pub gets: u64,
    /// [`Operation::Head`]
    pub heads: u64,
    /// [`Operation::List`]
    pub lists: u64,
    /// [`Operation::Delete`]
    pub deletes: u64,
    /// [`Operation::Copy`]
    pub copies: u64,
    /// [`Operation::MultipartStart`]
    pub multipart_starts: u64,
    /// [`Operation::MultipartPart`]
    pub multipart_parts: u64,
    /// [`Operation::MultipartComplete`]
    pub multipart_completes: u64,
    /// [`Operation::MultipartAbort`]
    pub multipart_aborts: u64,
}

impl Calls {
    /// All of them together.
    pub fn total(&self) -> u64 {
        let Self { puts, gets, heads, lists, deletes, copies, .. } = self;
        let Self { multipart_starts, multipart_parts, multipart_completes, multipart_aborts, .. } = self;
        puts + gets
            + heads
            + lists
            + deletes
            + copies
            + multipart_starts
            + multipart_parts
            + multipart_completes
            + multipart_aborts
    }

    /// What was asked between `earlier`, a snapshot of the same store, and this one.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            puts: self.puts - earlier.puts,
            gets: self.gets - earlier.gets,
            heads: self.heads - earlier.heads,
            lists: self.lists - earlier.lists,
            deletes: self.deletes - earlier.deletes,
            copies: self.copies - earlier.copies,
            multipart_starts: self.multipart_starts - earlier.multipart_starts,
            multipart_parts: self.multipart_parts - earlier.multipart_parts,
            multipart_completes: self.multipart_completes - earlier.multipart_completes,
            multipart_aborts: self.multipart_aborts - earlier.multipart_aborts,
        }
    }

    pub(super) fn count(&mut self, operation: Operation) {
        *match operation {
            Operation::Put => &mut self.puts,
            Operation::Get => &mut self.gets,
            Operation::Head => &mut self.heads,
            Operation::List => &mut self.lists,
            Operation::Delete => &mut self.deletes,
            Operation::Copy => &mut self.copies,
            Operation::MultipartStart => &mut self.multipart_starts,
            Operation::MultipartPart => &mut self.multipart_parts,
            Operation::MultipartComplete => &mut self.multipart_completes,
            Operation::MultipartAbort => &mut self.multipart_aborts,
        } += 1;
    }
}
