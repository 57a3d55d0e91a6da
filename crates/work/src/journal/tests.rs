//! The file journal: what it keeps, what it drops, and what it refuses.

use std::fs;

use tempfile::TempDir;

use super::*;

fn record(name: &str, output: Option<&str>) -> JournalRecord {
    let fingerprint = Fingerprint::of(name, "", None, std::iter::empty());
    JournalRecord::Done { fingerprint, name: name.to_owned(), output: output.map(str::to_owned) }
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    (folder, path)
}

fn write(path: &Path, records: &[JournalRecord]) {
    let mut journal = FileJournal::open(path).unwrap();
    records.iter().for_each(|record| journal.append(record).unwrap());
    journal.sync().unwrap();
}

fn read(path: &Path) -> Vec<JournalRecord> {
    FileJournal::open(path).unwrap().take_records()
}

#[test]
fn records_come_back_as_they_were_written() {
    let (_folder, path) = folder();
    let fingerprint = Fingerprint::of("undone", "", None, std::iter::empty());
    let undone = JournalRecord::Undone { fingerprint, name: "undone".to_owned() };
    let records = [record("plain", None), undone, record("with \"output\"\n", Some("{\"a\": [1, 2]}"))];
    write(&path, &records);
    assert_eq!(read(&path), records);
    write(&path, &[record("later", None)]);
    assert_eq!(read(&path).len(), 4);
}

#[test]
fn a_journal_is_readable_text() {
    let (_folder, path) = folder();
    write(&path, &[record("fetch", Some("7"))]);
    insta::assert_snapshot!(fs::read_to_string(&path).unwrap(), @r#"
    dragnet-work-journal 1
    9007afb6 {"id":"ba9eb7d020bc7c0ca6b2d9e26743531656c3000621f3950d691e93ffb7772518","name":"fetch","output":7}
    "#);
}

#[test]
fn a_torn_last_line_is_dropped_wherever_it_was_torn() {
    let (_folder, path) = folder();
    let records = [record("one", None), record("two", Some("2"))];
    write(&path, &records);
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let found = read(&path);
        assert_eq!(found, records[..found.len()], "cut after {length} bytes");
        write(&path, &[record("after", None)]);
        assert_eq!(read(&path).len(), found.len() + 1, "cut after {length} bytes");
    }
}

#[test]
fn a_corrupt_journal_is_set_aside_and_never_deleted() {
    let (_folder, path) = folder();
    write(&path, &[record("one", None), record("two", None)]);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(3).position(|window| window == b"one").unwrap();
    bytes[at] ^= 1;
    for n in 1..=2 {
        fs::write(&path, &bytes).unwrap();
        let error = FileJournal::open(&path).unwrap_err();
        let JournalError::Corrupt { line, set_aside, .. } = &error else { panic!("{error}") };
        assert_eq!((*line, fs::read(set_aside).unwrap() == bytes), (2, true));
        assert_eq!(set_aside.file_name().unwrap().to_str(), Some(&*format!("journal.corrupt-{n}")));
        assert_eq!(read(&path), [], "the next run starts from nothing");
    }
}

#[test]
fn a_file_that_is_no_journal_is_not_overwritten() {
    let (_folder, path) = folder();
    for content in ["precious notes\n", "precious notes", "\n"] {
        fs::write(&path, content).unwrap();
        let error = FileJournal::open(&path).unwrap_err();
        let JournalError::Corrupt { line: 1, set_aside, .. } = &error else { panic!("{error}") };
        assert_eq!(fs::read_to_string(set_aside).unwrap(), content);
    }
}

#[test]
fn a_journal_of_another_version_is_left_alone() {
    let (_folder, path) = folder();
    fs::write(&path, "dragnet-work-journal 2\nwhatever\n").unwrap();
    let error = FileJournal::open(&path).unwrap_err();
    assert!(matches!(&error, JournalError::OtherVersion { found, .. } if found == "dragnet-work-journal 2"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "dragnet-work-journal 2\nwhatever\n");
}

#[test]
fn a_journal_is_open_once_at_a_time() {
    let (_folder, path) = folder();
    let first = FileJournal::open(&path).unwrap();
    assert!(matches!(FileJournal::open(&path), Err(JournalError::InUse { .. })));
    drop(first);
    assert!(FileJournal::open(&path).is_ok());
}

#[test]
fn a_journal_that_cannot_be_opened_says_which() {
    let error = FileJournal::open("/no/such/folder/journal").unwrap_err();
    assert_eq!(error.to_string(), "journal /no/such/folder/journal: cannot open it");
}

#[test]
fn a_full_disk_costs_the_record_and_nothing_else() {
    // Every write to this device fails for want of space.
    let mut journal = FileJournal {
        file: OpenOptions::new().write(true).open("/dev/full").unwrap(),
        path: "/dev/full".into(),
        good_length: 0,
        broken: false,
        records: Vec::new(),
    };
    assert!(matches!(
        journal.append(&record("x", None)),
        Err(JournalError::Io { action: "append to it", .. })
    ));
    // It could not be cut back either, so nothing more is written after the damage.
    assert!(matches!(journal.append(&record("x", None)), Err(JournalError::Broken { .. })));
}

#[test]
fn every_part_of_an_identity_counts() {
    let none = std::iter::empty;
    let base = Fingerprint::of("name", "definition", None, none());
    let others = [
        Fingerprint::of("named", "efinition", None, none()),
        Fingerprint::of("name", "other", None, none()),
        Fingerprint::of("name", "definition", Some(&base), none()),
        Fingerprint::of("name", "definition", None, [base].iter()),
        Fingerprint::of("name", "definition", None, [base, base].iter()),
        Fingerprint::of("name", "definition", Some(&base), [base].iter()),
    ];
    let all: std::collections::HashSet<_> = others.into_iter().chain([base]).collect();
    assert_eq!(all.len(), 7);
    assert_eq!(Fingerprint::parse(&base.to_string()), Some(base));
    assert_eq!(Fingerprint::parse("zz"), None);
}
