//! What the faulty store promises, each fault on each operation that it applies to.

use std::sync::Arc;
use std::time::Duration;

use dragnet_ambient::{Clock, FakeClock, Rng};
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    Error, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};

use super::*;

const MS: Duration = Duration::from_millis(1);

/// A faulty store, the healthy one below it and the clock of both.
struct Rig {
    store: FaultyStore,
    inner: Arc<InMemory>,
    clock: FakeClock,
}

impl Rig {
    fn healthy() -> Self {
        Self::seeded(Faults::NONE, 1)
    }

    fn scripted(steps: impl IntoIterator<Item = impl Into<Step>>) -> Self {
        let rig = Self::healthy();
        rig.store.script(steps);
        rig
    }

    fn seeded(faults: Faults, seed: u64) -> Self {
        let (inner, clock) = (Arc::new(InMemory::new()), FakeClock::new());
        let store = FaultyStore::new(
            Arc::<InMemory>::clone(&inner),
            faults,
            Arc::new(clock.clone()),
            Rng::seeded(seed),
        );
        Self { store, inner, clock }
    }

    /// What is really there, read past the faults.
    async fn persisted(&self, path: &str) -> Option<String> {
        match self.inner.get(&Path::from(path)).await {
            Ok(found) => Some(String::from_utf8(found.bytes().await.unwrap().to_vec()).unwrap()),
            Err(Error::NotFound { .. }) => None,
            Err(error) => panic!("the healthy store failed: {error}"),
        }
    }

    async fn create(&self, path: &str, body: &'static str) -> Result<PutResult> {
        self.store.put_opts(&Path::from(path), body.into(), PutMode::Create.into()).await
    }

    async fn update(&self, path: &str, from: PutResult, body: &'static str) -> Result<PutResult> {
        let mode = PutMode::Update(UpdateVersion::from(from));
        self.store.put_opts(&Path::from(path), body.into(), PutOptions::from(mode)).await
    }

    fn struck(&self) -> Vec<(u64, Operation, Fault)> {
        self.store.injections().iter().map(|i| (i.nth, i.operation, i.fault)).collect()
    }
}

fn status_of(error: &Error) -> Option<u16> {
    InjectedError::find(error).expect("the error was injected").status()
}

fn at(path: &str) -> Path {
    Path::from(path)
}

#[tokio::test]
async fn a_healthy_store_passes_everything_through() {
    let rig = Rig::healthy();
    rig.store.put(&at("a"), "one".into()).await.unwrap();
    assert_eq!(rig.persisted("a").await.as_deref(), Some("one"));
    assert_eq!(rig.store.get(&at("a")).await.unwrap().bytes().await.unwrap(), "one");
    assert_eq!(rig.store.injections(), []);
    assert_eq!(rig.store.to_string(), "FaultyStore(InMemory)");
}

#[tokio::test]
async fn a_write_that_failed_and_did_not_persist_left_nothing() {
    let rig = Rig::scripted([Fault::FailedNotPersisted]);
    let error = rig.store.put(&at("a"), "one".into()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Generic FaultyStore error: injected FailedNotPersisted into the put of 'a': connection reset"
    );
    assert_eq!(rig.persisted("a").await, None);
}

#[tokio::test]
async fn a_write_that_failed_but_persisted_is_readable() {
    let rig = Rig::scripted([Fault::FailedButPersisted]);
    let error = rig.create("a", "one").await.unwrap_err();
    assert!(matches!(error, Error::Generic { store: "FaultyStore", .. }), "{error:?}");
    assert_eq!(status_of(&error), None);
    assert_eq!(rig.persisted("a").await.as_deref(), Some("one"));
    assert!(matches!(rig.create("a", "two").await, Err(Error::AlreadyExists { .. })), "by our own success");
}

#[tokio::test]
async fn a_broken_connection_is_an_io_error_at_the_root() {
    let rig = Rig::scripted([Fault::FailedButPersisted]);
    let error = rig.create("a", "one").await.unwrap_err();
    let injected = InjectedError::find(&error).unwrap();
    let root: &std::io::Error = std::error::Error::source(injected).unwrap().downcast_ref().unwrap();
    assert_eq!(root.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_server_error_after_the_write_persisted_says_503_and_is_readable() {
    let rig = Rig::scripted([Fault::ServerErrorButPersisted]);
    let error = rig.create("a", "one").await.unwrap_err();
    assert!(matches!(error, Error::Generic { .. }), "{error:?}");
    assert_eq!(status_of(&error), Some(503));
    assert_eq!(rig.persisted("a").await.as_deref(), Some("one"));
}

#[tokio::test]
async fn a_conflict_on_create_says_already_exists_though_nothing_does() {
    let rig = Rig::scripted([Fault::Conflict]);
    let error = rig.create("a", "one").await.unwrap_err();
    assert!(matches!(&error, Error::AlreadyExists { path, .. } if path == "a"), "{error:?}");
    assert_eq!(status_of(&error), Some(409));
    assert_eq!(rig.persisted("a").await, None);
}

#[tokio::test]
async fn a_conflict_on_update_says_precondition_and_leaves_the_old_value() {
    let rig = Rig::healthy();
    let version = rig.create("a", "one").await.unwrap();
    rig.store.script([Fault::Conflict]);
    let error = rig.update("a", version.clone(), "two").await.unwrap_err();
    assert!(matches!(&error, Error::Precondition { path, .. } if path == "a"), "{error:?}");
    assert_eq!(status_of(&error), Some(412));
    assert_eq!(rig.persisted("a").await.as_deref(), Some("one"));
    rig.update("a", version, "two").await.expect("the version still holds");
}

#[tokio::test]
async fn a_bare_conflict_on_update_says_already_exists() {
    let rig = Rig::healthy();
    let version = rig.create("a", "one").await.unwrap();
    rig.store.script([Fault::BareConflict]);
    let error = rig.update("a", version, "two").await.unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error:?}");
    assert_eq!(status_of(&error), Some(409));
    assert_eq!(rig.persisted("a").await.as_deref(), Some("one"));
}

#[tokio::test]
async fn latency_sleeps_on_the_given_clock_before_the_write() {
    let rig = Rig::scripted([Fault::Latency(30 * MS)]);
    let path = at("a");
    let watch = async {
        while rig.clock.sleepers() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(rig.persisted("a").await, None, "the write waits for the clock");
        rig.clock.advance(30 * MS);
    };
    let (put, ()) = tokio::join!(rig.store.put(&path, "one".into()), watch);
    put.unwrap();
    assert_eq!(rig.clock.now().since_origin(), 30 * MS);
    assert_eq!(rig.persisted("a").await.as_deref(), Some("one"));
    assert_eq!(rig.struck(), [(1, Operation::Put, Fault::Latency(30 * MS))]);
}

#[tokio::test]
async fn a_write_that_the_store_itself_refuses_answers_with_that_refusal() {
    let rig = Rig::healthy();
    rig.create("a", "one").await.unwrap();
    rig.store.script([Fault::FailedButPersisted]);
    let error = rig.create("a", "two").await.unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error:?}");
    assert!(InjectedError::find(&error).is_none());
    assert_eq!(rig.persisted("a").await.as_deref(), Some("one"));
    assert_eq!((rig.struck(), rig.store.script_left()), (vec![], vec![]));
}

#[tokio::test]
async fn reads_and_listings_fail_before_they_are_made() {
    let rig = Rig::healthy();
    rig.create("d/a", "one").await.unwrap();
    rig.store.set_faults(Faults::OUTAGE);
    assert!(matches!(rig.store.get(&at("d/a")).await, Err(Error::Generic { .. })));
    assert!(matches!(rig.store.head(&at("d/a")).await, Err(Error::Generic { .. })));
    assert!(matches!(rig.store.list_with_delimiter(None).await, Err(Error::Generic { .. })));
    let listed: Vec<_> = rig.store.list(Some(&at("d"))).collect().await;
    assert!(matches!(listed[..], [Err(Error::Generic { .. })]), "one error, then the end: {listed:?}");
    let listed: Vec<_> = rig.store.list_with_offset(None, &at("b")).collect().await;
    assert!(matches!(listed[..], [Err(Error::Generic { .. })]), "{listed:?}");
    assert_eq!(rig.store.injections()[3].path, at("d"), "a listing is logged by its prefix");

    rig.store.set_faults(Faults::NONE);
    let listed: Vec<_> = rig.store.list(None).map_ok(|meta| meta.location).try_collect().await.unwrap();
    assert_eq!(listed, [at("d/a")], "the outage is over");
}

#[tokio::test]
async fn a_delete_that_failed_but_persisted_has_deleted() {
    let rig = Rig::healthy();
    for path in ["a", "b", "c"] {
        rig.create(path, "x").await.unwrap();
    }
    rig.store.script([Fault::FailedNotPersisted, Fault::FailedButPersisted]);
    let paths = futures_util::stream::iter(["a", "b", "c"].map(|path| Ok(at(path)))).boxed();
    let answers: Vec<_> = rig.store.delete_stream(paths).collect().await;
    assert!(matches!(&answers[..], [Err(_), Err(_), Ok(path)] if *path == at("c")), "{answers:?}");
    assert_eq!(rig.persisted("a").await.as_deref(), Some("x"), "failed and did not persist");
    assert_eq!(rig.persisted("b").await, None, "failed but persisted");
    assert_eq!(rig.persisted("c").await, None);
}

#[tokio::test]
async fn a_copy_meets_the_faults_of_a_write() {
    let rig = Rig::healthy();
    rig.create("a", "x").await.unwrap();
    rig.store.script([Fault::Conflict, Fault::FailedButPersisted]);
    let refused = rig.store.copy_if_not_exists(&at("a"), &at("b")).await;
    assert!(matches!(refused, Err(Error::AlreadyExists { .. })), "{refused:?}");
    assert_eq!(rig.persisted("b").await, None);
    assert!(matches!(rig.store.copy(&at("a"), &at("b")).await, Err(Error::Generic { .. })));
    assert_eq!(rig.persisted("b").await.as_deref(), Some("x"));
}

#[tokio::test]
async fn a_rename_can_fail_between_its_copy_and_its_delete() {
    let rig = Rig::healthy();
    rig.create("a", "x").await.unwrap();
    rig.store.script([Fault::FailedNotPersisted.on(Operation::Delete)]);
    rig.store.rename(&at("a"), &at("b")).await.unwrap_err();
    assert_eq!(rig.persisted("a").await.as_deref(), Some("x"));
    assert_eq!(rig.persisted("b").await.as_deref(), Some("x"));
}

async fn upload(rig: &Rig) -> (Box<dyn MultipartUpload>, Vec<Result<()>>) {
    let mut upload = rig.store.put_multipart(&at("big")).await.unwrap();
    let parts = ["one ", "two"].map(|part| upload.put_part(PutPayload::from_static(part.as_bytes())));
    let mut answers = Vec::new();
    for part in parts {
        answers.push(part.await);
    }
    (upload, answers)
}

#[tokio::test]
async fn an_upload_in_parts_that_failed_but_persisted_is_readable() {
    let rig = Rig::scripted([Fault::ServerErrorButPersisted.on(Operation::MultipartComplete)]);
    let (mut upload, parts) = upload(&rig).await;
    assert!(matches!(parts[..], [Ok(()), Ok(())]), "{parts:?}");
    assert_eq!(rig.persisted("big").await, None, "nothing is visible before it is complete");
    assert_eq!(status_of(&upload.complete().await.unwrap_err()), Some(503));
    assert_eq!(rig.persisted("big").await.as_deref(), Some("one two"));
}

#[tokio::test]
async fn an_upload_with_a_failed_part_never_completes() {
    for fault in [Fault::FailedNotPersisted, Fault::FailedButPersisted] {
        let rig = Rig::scripted([fault.on(Operation::MultipartPart)]);
        let (mut upload, parts) = upload(&rig).await;
        assert!(matches!(parts[..], [Err(_), Ok(())]), "{parts:?}");
        let error = upload.complete().await.unwrap_err();
        assert!(InjectedError::find(&error).is_none(), "{error}");
        upload.abort().await.unwrap();
        assert_eq!(rig.persisted("big").await, None);
    }
}

#[tokio::test]
async fn an_upload_can_fail_at_its_start() {
    let rig = Rig::scripted([Fault::FailedNotPersisted]);
    rig.store.put_multipart(&at("big")).await.unwrap_err();
    assert_eq!(rig.struck(), [(1, Operation::MultipartStart, Fault::FailedNotPersisted)]);
}

#[tokio::test]
async fn a_step_waits_for_the_operation_that_it_names() {
    let rig = Rig::scripted([
        Fault::FailedNotPersisted.on(Operation::Get),
        Fault::Pass.on(Operation::Put),
        Fault::FailedNotPersisted.on(Operation::Put).under("markers/"),
    ]);
    rig.create("markers/1", "x").await.unwrap();
    rig.create("leases/1", "x").await.unwrap();
    rig.create("markers/2", "x").await.unwrap_err();
    assert_eq!(rig.store.script_left(), [Fault::FailedNotPersisted.on(Operation::Get)]);
    rig.store.get(&at("leases/1")).await.unwrap_err();
    assert_eq!(rig.store.script_left(), []);
}

#[tokio::test]
async fn a_step_waits_for_an_operation_that_it_can_strike() {
    let rig = Rig::scripted([Fault::Conflict, Fault::FailedButPersisted]);
    rig.store.list_with_delimiter(None).await.expect("a read has nothing to persist");
    rig.store.put(&at("a"), "x".into()).await.expect_err("a plain write fails but has no conflict");
    assert_eq!(rig.store.script_left(), [Step::from(Fault::Conflict)]);
}

#[tokio::test]
async fn every_operation_is_counted_whatever_becomes_of_it() {
    let rig = Rig::scripted([Fault::FailedNotPersisted]);
    rig.create("a", "x").await.unwrap_err();
    rig.create("a", "x").await.unwrap();
    let before = rig.store.calls();
    assert_eq!(before, Calls { puts: 2, ..Calls::default() });

    rig.store.get(&at("a")).await.unwrap();
    rig.store.head(&at("a")).await.unwrap();
    rig.store.get_ranges(&at("a"), std::slice::from_ref(&(0..1))).await.unwrap();
    let never_polled = rig.store.list(None);
    rig.store.list(None).try_collect::<Vec<_>>().await.unwrap();
    rig.store.list_with_delimiter(None).await.unwrap();
    rig.store.rename(&at("a"), &at("b")).await.unwrap();
    let (mut upload, _) = upload(&rig).await;
    upload.complete().await.unwrap();
    upload.abort().await.unwrap();
    drop(never_polled);
    let expected = Calls {
        puts: 0,
        gets: 2,
        heads: 1,
        lists: 2,
        deletes: 1,
        copies: 1,
        multipart_starts: 1,
        multipart_parts: 2,
        multipart_completes: 1,
        multipart_aborts: 1,
    };
    assert_eq!(rig.store.calls().since(&before), expected);
    assert_eq!(rig.store.calls().total(), 14);
}

const MIXED: Faults = Faults {
    failed_not_persisted_pct: 10,
    failed_but_persisted_pct: 10,
    server_error_but_persisted_pct: 10,
    conflict_pct: 10,
    bare_conflict_pct: 10,
    latency_pct: 10,
    latency_max: Duration::from_millis(100),
};

/// Makes the same two hundred creates and gets, and tells what struck them.
async fn storm(seed: u64, steps: impl IntoIterator<Item = Step>) -> Vec<Injection> {
    let rig = Rig::seeded(MIXED, seed);
    rig.store.script(steps);
    for n in 0..200 {
        let work = async {
            let path = at(&format!("{n}"));
            let answer = rig.store.put_opts(&path, "x".into(), PutMode::Create.into()).await;
            drop((answer, rig.store.head(&path).await));
        };
        let pass_time = async {
            loop {
                tokio::task::yield_now().await;
                rig.clock.advance_to_next_sleeper();
            }
        };
        tokio::select! { () = work => {}, () = pass_time => {} }
    }
    rig.store.injections()
}

#[tokio::test]
async fn equal_seeds_meet_equal_faults() {
    let first = storm(42, []).await;
    assert_eq!(first, storm(42, []).await);
    assert_ne!(first, storm(43, []).await);
}

#[tokio::test]
async fn a_scripted_fault_does_not_shift_the_luck_of_later_operations() {
    let plain = storm(42, []).await;
    let scripted = storm(42, [Fault::Pass.on(Operation::Head), Fault::ServerErrorButPersisted.into()]).await;
    let later = |log: &[Injection]| log.iter().filter(|i| i.nth > 2).cloned().collect::<Vec<_>>();
    assert_eq!(scripted[0].fault, Fault::ServerErrorButPersisted);
    assert_eq!(later(&plain), later(&scripted));
}

#[tokio::test]
async fn every_kind_of_seeded_fault_strikes_about_as_often_as_asked() {
    let log = storm(7, []).await;
    let count = |wanted: fn(&Fault) -> bool| log.iter().filter(|i| wanted(&i.fault)).count();
    let (reads, writes) = (200, 200);
    for (kind, count, expected) in [
        ("not persisted", count(|f| *f == Fault::FailedNotPersisted), (reads + writes) / 10),
        ("but persisted", count(|f| *f == Fault::FailedButPersisted), writes / 10),
        ("server error", count(|f| *f == Fault::ServerErrorButPersisted), writes / 10),
        ("conflict", count(|f| *f == Fault::Conflict), writes / 10),
        ("bare conflict", count(|f| *f == Fault::BareConflict), writes / 10),
        ("latency", count(|f| matches!(f, Fault::Latency(d) if *d <= 100 * MS)), (reads + writes) / 10),
    ] {
        assert!((expected / 2..=expected * 2).contains(&count), "{kind}: {count} instead of {expected}");
    }
}

#[test]
#[should_panic(expected = "110 % together; at most 100 can strike")]
fn shares_of_more_than_a_hundred_percent_are_refused() {
    Rig::seeded(Faults { conflict_pct: 60, latency_pct: 50, ..Faults::NONE }, 1);
}
