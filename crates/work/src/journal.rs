//! Crash-resume: a [`Journal`] remembers which items have succeeded, [`FileJournal`] on disk.
//!
//! An item is known by its [`Fingerprint`]: a hash of its name, its definition, its parent and everything
//! it depends on. Change any of these and the item, and all that follows from it, runs again.
//!
//! The file is a line of text for each item, with a checksum, appended when the item succeeds. After
//! `kill -9` the file is whole but for, at worst, a last line without its end, which is dropped: that
//! item runs again. Lines reach the disk for good at the end of a run. A power cut before that may cost
//! the records of that run, and if it leaves a hole in the middle of the file, the file is taken for
//! corrupt: all items then run again.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use thiserror::Error;

/// What an item is, as far as a journal is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Hashes the parts of an item's identity. Each part is framed by its length, so no two different
    /// identities give the same bytes to hash.
    pub(crate) fn of<'a>(
        name: &str,
        definition: &str,
        parent: Option<&'a Fingerprint>,
        dependencies: impl Iterator<Item = &'a Fingerprint>,
    ) -> Self {
        let mut hash = Sha256::new();
        for text in [name, definition] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        hash.update([u8::from(parent.is_some())]);
        for other in parent.into_iter().chain(dependencies) {
            hash.update(other.0);
        }
        Self(hash.finalize().into())
    }

    fn parse(hex: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if hex.len() != 64 || !hex.is_ascii() {
            return None;
        }
        for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// What a journal says of one item. The last word counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalRecord {
    /// It has succeeded.
    Done {
        /// Which one.
        fingerprint: Fingerprint,
        /// Its name, for people who read the journal.
        name: String,
        /// Its durable output, as JSON in one line.
        output: Option<String>,
    },
    /// It had succeeded, and is to be done again.
    Undone {
        /// Which one.
        fingerprint: Fingerprint,
        /// Its name, for people who read the journal.
        name: String,
    },
}

/// Remembers which items have succeeded.
///
/// Contract: what `append` has acknowledged is among the records that the next process loads, even if
/// this one is killed directly afterwards. A failed `append` leaves the earlier records intact.
pub trait Journal: Send {
    /// Hands out the records of earlier processes, once.
    fn take_records(&mut self) -> Vec<JournalRecord>;

    /// Adds a record.
    fn append(&mut self, record: &JournalRecord) -> Result<(), JournalError>;

    /// Makes all records durable against power loss, too.
    fn sync(&mut self) -> Result<(), JournalError>;
}

/// What can be wrong with a journal.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// Another run has it open.
    #[error("journal {} is in use by another run; wait for it, or give this run a journal of its own", path.display())]
    InUse {
        /// The journal.
        path: PathBuf,
    },
    /// It is not what was written. It was moved out of the way.
    #[error(
        "journal {} is corrupt in line {line}; it was kept as {}, and the next run starts from nothing",
        path.display(), set_aside.display()
    )]
    Corrupt {
        /// The journal.
        path: PathBuf,
        /// The first bad line, counted from 1.
        line: usize,
        /// Where it is now.
        set_aside: PathBuf,
    },
    /// It was written by another version of this program.
    #[error("journal {} has format {found:?}, this program reads {HEADER:?}; move it away to start from nothing", path.display())]
    OtherVersion {
        /// The journal.
        path: PathBuf,
        /// Its first line.
        found: String,
    },
    /// Reading or writing failed.
    #[error("journal {}: cannot {action}", path.display())]
    Io {
        /// The journal.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// An earlier write failed half-way and could not be undone, so nothing more is written.
    #[error("journal {} takes no more records after a failed write", path.display())]
    Broken {
        /// The journal.
        path: PathBuf,
    },
}

/// The first line of every journal.
const HEADER: &str = "dragnet-work-journal 1";
const HEADER_STEM: &str = "dragnet-work-journal ";

/// A [`Journal`] in one file, locked while it is open.
#[derive(Debug)]
pub struct FileJournal {
    file: File,
    path: PathBuf,
    /// Everything up to here is whole lines.
    good_length: u64,
    broken: bool,
    records: Vec<JournalRecord>,
}

/// The JSON part of a line.
#[derive(Serialize, Deserialize)]
struct Line<'a> {
    id: String,
    name: String,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    output: Option<&'a RawValue>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    undone: bool,
}

impl FileJournal {
    /// Opens the journal at `path`, or begins one.
    ///
    /// A corrupt journal is renamed, never deleted, and reported: the caller decides whether to begin
    /// again.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, JournalError> {
        let path = path.into();
        let io = |action| io_error(&path, action);
        let mut file = open_file(&path).map_err(io("open it"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::InUse { path }),
            Err(TryLockError::Error(source)) => return Err(io("lock it")(source)),
        }
        // Whoever held the lock before may have set the file aside, and what we locked is not the journal
        // any more.
        if !is_same_file(&file, &path).map_err(io("look at it"))? {
            return Err(JournalError::InUse { path });
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io("read it"))?;
        let Parsed { records, good_length } = match parse(&bytes) {
            Ok(parsed) => parsed,
            Err(Damage::OtherVersion(found)) => return Err(JournalError::OtherVersion { path, found }),
            Err(Damage::Line(line)) => return Err(set_aside(path, line)),
        };
        let mut journal = Self { file, path, good_length, broken: false, records };
        journal.drop_torn_tail().map_err(io_error(&journal.path, "drop its torn last line"))?;
        if journal.good_length == 0 {
            journal.begin().map_err(io_error(&journal.path, "begin it"))?;
        }
        Ok(journal)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn begin(&mut self) -> io::Result<()> {
        self.write_line(HEADER)?;
        // The file's name must survive a power cut as well as its content.
        self.file.sync_all()?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }

    /// What a killed process has left half-written was never acknowledged.
    fn drop_torn_tail(&mut self) -> io::Result<()> {
        self.file.set_len(self.good_length)?;
        self.file.seek(SeekFrom::Start(self.good_length)).map(|_| ())
    }

    fn write_line(&mut self, line: &str) -> io::Result<()> {
        let line = format!("{line}\n");
        // One call, so that a kill leaves at most this line incomplete.
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            self.broken = self.drop_torn_tail().is_err();
            return Err(error);
        }
        self.good_length += line.len() as u64;
        Ok(())
    }
}

impl Journal for FileJournal {
    fn take_records(&mut self) -> Vec<JournalRecord> {
        std::mem::take(&mut self.records)
    }

    fn append(&mut self, record: &JournalRecord) -> Result<(), JournalError> {
        if self.broken {
            return Err(JournalError::Broken { path: self.path.clone() });
        }
        let line = encode(record).map_err(|error| io_error(&self.path, "encode a record")(error.into()))?;
        self.write_line(&line).map_err(io_error(&self.path, "append to it"))
    }

    fn sync(&mut self) -> Result<(), JournalError> {
        self.file.sync_data().map_err(io_error(&self.path, "sync it"))
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let (ours, theirs) = (file.metadata()?, std::fs::metadata(path)?);
    Ok((ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()))
}

fn io_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> JournalError + use<> {
    let path = path.to_owned();
    move |source| JournalError::Io { path, action, source }
}

fn encode(record: &JournalRecord) -> Result<String, serde_json::Error> {
    let (fingerprint, name, output, undone) = match record {
        JournalRecord::Done { fingerprint, name, output } => (fingerprint, name, output.clone(), false),
        JournalRecord::Undone { fingerprint, name } => (fingerprint, name, None, true),
    };
    let output = output.map(RawValue::from_string).transpose()?;
    let line = Line { id: fingerprint.to_string(), name: name.clone(), output: output.as_deref(), undone };
    let json = serde_json::to_string(&line)?;
    Ok(format!("{:08x} {json}", crc32fast::hash(json.as_bytes())))
}

fn decode(line: &str) -> Option<JournalRecord> {
    let (checksum, json) = line.split_at_checked(8)?;
    let json = json.strip_prefix(' ')?;
    if u32::from_str_radix(checksum, 16).ok()? != crc32fast::hash(json.as_bytes()) {
        return None;
    }
    let line: Line<'_> = serde_json::from_str(json).ok()?;
    let (fingerprint, name) = (Fingerprint::parse(&line.id)?, line.name);
    Some(if line.undone {
        JournalRecord::Undone { fingerprint, name }
    } else {
        JournalRecord::Done { fingerprint, name, output: line.output.map(|raw| raw.get().to_owned()) }
    })
}

struct Parsed {
    records: Vec<JournalRecord>,
    good_length: u64,
}

enum Damage {
    OtherVersion(String),
    Line(usize),
}

/// Reads whole lines; what follows the last line break was never finished.
fn parse(bytes: &[u8]) -> Result<Parsed, Damage> {
    let good_length = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let mut lines =
        bytes[..good_length].split_inclusive(|byte| *byte == b'\n').map(|line| &line[..line.len() - 1]);
    // A torn first line is ours only if it is the beginning of a header.
    if good_length == 0 && !HEADER.as_bytes().starts_with(bytes) {
        return Err(Damage::Line(1));
    }
    match lines.next() {
        None => {}
        Some(line) if line == HEADER.as_bytes() => {}
        Some(line) if line.starts_with(HEADER_STEM.as_bytes()) => {
            return Err(Damage::OtherVersion(String::from_utf8_lossy(line).into_owned()));
        }
        Some(_) => return Err(Damage::Line(1)),
    }
    let read = |(at, line): (usize, &[u8])| {
        std::str::from_utf8(line).ok().and_then(decode).ok_or(Damage::Line(at + 2))
    };
    let records = lines.enumerate().map(read).collect::<Result<_, _>>()?;
    Ok(Parsed { records, good_length: good_length as u64 })
}

fn set_aside(path: PathBuf, line: usize) -> JournalError {
    let with_suffix = |n: u32| {
        let mut name = path.clone().into_os_string();
        name.push(format!(".corrupt-{n}"));
        PathBuf::from(name)
    };
    let Some(set_aside) = (1..).map(with_suffix).find(|candidate| !candidate.exists()) else {
        unreachable!("the suffixes do not end");
    };
    match std::fs::rename(&path, &set_aside) {
        Ok(()) => JournalError::Corrupt { path, line, set_aside },
        Err(source) => JournalError::Io { path, action: "set it aside, corrupt as it is", source },
    }
}

/// A journal as the scheduler writes it.
pub(crate) struct Book {
    journal: Box<dyn Journal>,
    failure: Option<JournalError>,
}

impl Book {
    pub(crate) fn new(journal: Box<dyn Journal>) -> Self {
        Self { journal, failure: None }
    }

    /// The first thing that went wrong since the last call.
    pub(crate) fn take_failure(&mut self) -> Option<JournalError> {
        self.failure.take()
    }

    /// Keeps the first failure for the report of the run; the run itself goes on.
    pub(crate) fn append(&mut self, record: &JournalRecord) {
        let result = self.journal.append(record);
        self.note(result);
    }

    pub(crate) fn sync(&mut self) {
        let result = self.journal.sync();
        self.note(result);
    }

    fn note(&mut self, result: Result<(), JournalError>) {
        if let Err(error) = result {
            tracing::error!(%error, "the journal could not be written");
            self.failure.get_or_insert(error);
        }
    }
}

impl fmt::Debug for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Book").field("failure", &self.failure).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
