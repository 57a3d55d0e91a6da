//! What Dragnet's tests run against: fakes that keep the contract, and break it only on demand.
//!
//! Three nouns. A [`FakeClock`] moves only when a test says so. A [`FaultyStore`] wraps any object store
//! and makes it fail, by a seed ([`Faults`]) or by a script ([`Fault`], [`Step`]); it can lose a write,
//! and it can lose only the answer to a write. A [`ScriptedServer`] is a real HTTP server on the
//! loopback interface that answers with one [`Reply`] after another, and misbehaves when told to.
//!
//! ```
//! use std::sync::Arc;
//! use dragnet_ambient::Rng;
//! use dragnet_testkit::{FakeClock, Fault, Faults, FaultyStore};
//! use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let inner = Arc::new(InMemory::new());
//! let store = FaultyStore::new(inner, Faults::NONE, Arc::new(FakeClock::new()), Rng::seeded(7));
//! store.script([Fault::FailedButPersisted]);
//!
//! let path = Path::from("leases/a");
//! assert!(store.put(&path, "epoch 1".into()).await.is_err());
//! assert_eq!(store.get(&path).await?.bytes().await?, "epoch 1");
//! assert_eq!((store.calls().puts, store.calls().gets), (1, 1));
//! # Ok::<(), object_store::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Left out on purpose: anything that knows a domain, and everything that production code could want. Only
//! `[dev-dependencies]` may name this crate; `cli/tests/tidy.rs` sees to that.

mod faulty_store;
mod http;

pub use dragnet_ambient::FakeClock;
pub use faulty_store::{Calls, Fault, Faults, FaultyStore, InjectedError, Injection, Operation, Step};
pub use http::{Gate, Reply, Request, ScriptedServer};
