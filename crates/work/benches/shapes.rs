//! The scheduler against the tasks one would spawn by hand: CPU time and memory for work that does
//! nothing, so that all that is measured is scheduling.
//!
//! Peers, in the same process and on the same runtime: a raw `JoinSet` with a `Semaphore`, wave by wave
//! where there are dependencies; and a petgraph `toposort` with spawning by in-degree. CPU time is that
//! of the whole process, building the graph included; each figure is the least of several rounds.
//!
//! `cargo bench -p dragnet-work` runs all; a number after `--` sets the rounds, and
//! `profile` leaves the peers out, for a profiler.

#![allow(unsafe_code, clippy::print_stdout, clippy::unwrap_used, missing_docs, reason = "a benchmark")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dragnet_work::{Work, WorkContext, WorkHandle, WorkId, WorkOutcome, WorkScheduler, WorkSchedulerConfig};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Counts live bytes, but only when asked to, so that timing is not disturbed.
struct Counting;

static COUNT: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: forwards every call unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNT.load(Ordering::Relaxed) {
            LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        }
        // SAFETY: the caller's obligations are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if COUNT.load(Ordering::Relaxed) {
            LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        }
        // SAFETY: the caller's obligations are the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SLOTS: usize = 16;

struct Noop;

#[async_trait]
impl Work for Noop {
    fn name(&self) -> &str {
        "noop"
    }

    async fn run(&mut self, ctx: WorkContext) -> WorkOutcome {
        black_box(ctx.attempt);
        WorkOutcome::Success
    }
}

/// A graph in waves: each item depends on items of the wave before.
struct Shape {
    name: &'static str,
    waves: usize,
    width: usize,
    fan_in: usize,
}

impl Shape {
    fn items(&self) -> usize {
        self.waves * self.width
    }

    fn edges(&self) -> usize {
        (self.waves - 1) * self.width * self.fan_in
    }

    /// The places, within the wave before, of what an item depends on.
    fn dependencies(&self, place: usize) -> impl Iterator<Item = usize> {
        let width = self.width;
        (0..self.fan_in).map(move |n| (place + n * 7) % width)
    }
}

fn main() {
    let rounds = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(5);
    let runtime = Runtime::new().unwrap();
    println!(
        "{SLOTS} slots, {} threads, CPU ns per item, least of {rounds} rounds",
        runtime.metrics().num_workers()
    );
    println!(
        "{:<28}{:>9}{:>9}{:>11}{:>9}{:>11}{:>12}",
        "shape", "dragnet", "JoinSet", "ratio", "petgraph", "ratio", "bytes/item"
    );
    let independent = |name, width| Shape { name, waves: 1, width, fan_in: 0 };
    let shapes = [
        independent("10 k independent", 10_000),
        independent("100 k independent", 100_000),
        independent("1 M independent", 1_000_000),
        Shape { name: "chain of 100 k", waves: 100_000, width: 1, fan_in: 1 },
        Shape { name: "100 layers x 1,000, 10 deps", waves: 100, width: 1_000, fan_in: 10 },
    ];
    let mut per_item = Vec::new();
    // Threads started, memory mapped: the first figure shall not pay for it.
    _ = best(1, shapes[1].items(), || dragnet(&runtime, &Graph::Waves(&shapes[1])));
    if std::env::args().any(|word| word == "profile") {
        return shapes
            .iter()
            .for_each(|shape| _ = best(rounds, shape.items(), || dragnet(&runtime, &Graph::Waves(shape))));
    }
    for shape in &shapes {
        let ours = best(rounds, shape.items(), || dragnet(&runtime, &Graph::Waves(shape)));
        let raw = best(rounds, shape.items(), || join_set(&runtime, shape));
        let topo = best(rounds, shape.items(), || petgraph_spawn(&runtime, &Graph::Waves(shape)));
        report(shape.name, shape.items(), shape.edges(), [ours, raw, topo], memory(&Graph::Waves(shape)));
        per_item.push(ours.as_nanos() as f64 / shape.items() as f64);
    }
    const LEAVES: usize = 100_000;
    let fan = Graph::Fan(LEAVES);
    let ours = best(rounds, LEAVES, || dragnet(&runtime, &fan));
    let raw = best(rounds, LEAVES, || join_set_fan(&runtime, LEAVES));
    let topo = best(rounds, LEAVES, || petgraph_spawn(&runtime, &fan));
    report("fan 1 -> 100 k -> 1", LEAVES + 2, 2 * LEAVES, [ours, raw, topo], memory(&fan));
    println!("\nns per item at 1 M against 10 k: {:.2}x", per_item[2] / per_item[0]);
    look_while_running(&runtime);
}

fn report(name: &str, items: usize, edges: usize, [ours, raw, topo]: [Duration; 3], bytes: isize) {
    let each = |cpu: Duration| cpu.as_nanos() as f64 / items as f64;
    let ratio = |peer: Duration| format!("{:.2}x", ours.as_secs_f64() / peer.as_secs_f64());
    let limit = 200 * items + 8 * edges;
    println!(
        "{name:<28}{:>9.0}{:>9.0}{:>11}{:>9.0}{:>11}{:>12}",
        each(ours),
        each(raw),
        ratio(raw),
        each(topo),
        ratio(topo),
        format!("{} ({:.2})", bytes / items as isize, bytes as f64 / limit as f64),
    );
}

/// The least CPU time of several rounds, each with enough repetitions to be long against the clock's tick.
fn best(rounds: usize, items: usize, mut measured: impl FnMut()) -> Duration {
    const ITEMS_MIN: usize = 200_000;
    let repetitions = ITEMS_MIN.div_ceil(items);
    let one = |_| {
        let before = cpu_time();
        (0..repetitions).for_each(|_| measured());
        (cpu_time() - before) / repetitions as u32
    };
    (0..rounds).map(one).min().unwrap()
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

enum Graph<'a> {
    Waves(&'a Shape),
    Fan(usize),
}

impl Graph<'_> {
    /// Calls `add` for each item with the numbers of those it depends on, in an order that allows it.
    fn build<Id: Copy>(&self, mut add: impl FnMut(&[Id]) -> Id) {
        match self {
            Self::Waves(shape) => {
                let (mut before, mut wave): (Vec<Id>, Vec<Id>) = Default::default();
                let mut deps = Vec::new();
                for n in 0..shape.waves {
                    for place in 0..shape.width {
                        deps.clear();
                        if n > 0 {
                            deps.extend(shape.dependencies(place).map(|at| before[at]));
                        }
                        wave.push(add(&deps));
                    }
                    std::mem::swap(&mut before, &mut wave);
                    wave.clear();
                }
            }
            Self::Fan(leaves) => {
                let root = add(&[]);
                let leaves: Vec<Id> = (0..*leaves).map(|_| add(&[root])).collect();
                add(&leaves);
            }
        }
    }
}

fn scheduler() -> WorkScheduler {
    WorkScheduler::new(WorkSchedulerConfig { max_concurrency: SLOTS, ..Default::default() }).unwrap()
}

fn fill(scheduler: &WorkHandle, graph: &Graph<'_>) {
    graph.build(|deps: &[WorkId]| scheduler.add_work(Box::new(Noop), deps.to_vec(), 0).unwrap());
}

fn dragnet(runtime: &Runtime, graph: &Graph<'_>) {
    let mut scheduler = scheduler();
    fill(&scheduler, graph);
    on_a_worker(runtime, async move { assert!(scheduler.run_until_done().await.all_succeeded()) });
}

fn memory(graph: &Graph<'_>) -> isize {
    let before = LIVE.load(Ordering::Relaxed);
    COUNT.store(true, Ordering::Relaxed);
    let scheduler = scheduler();
    fill(&scheduler, graph);
    let bytes = LIVE.load(Ordering::Relaxed) - before;
    COUNT.store(false, Ordering::Relaxed);
    drop(scheduler);
    bytes
}

async fn noop() {
    black_box(1);
}

/// Runs the driver itself on a worker thread: the best case for everybody, as it is where its tasks are.
fn on_a_worker(runtime: &Runtime, future: impl Future<Output = ()> + Send + 'static) {
    runtime.block_on(runtime.spawn(future)).unwrap();
}

fn join_set(runtime: &Runtime, shape: &Shape) {
    let (waves, width) = (shape.waves, shape.width);
    on_a_worker(runtime, async move {
        let slots = Arc::new(Semaphore::new(SLOTS));
        let mut set = JoinSet::new();
        for _ in 0..waves {
            join_wave(&mut set, &slots, width).await;
        }
    });
}

fn join_set_fan(runtime: &Runtime, leaves: usize) {
    on_a_worker(runtime, async move {
        let slots = Arc::new(Semaphore::new(SLOTS));
        let mut set = JoinSet::new();
        for width in [1, leaves, 1] {
            join_wave(&mut set, &slots, width).await;
        }
    });
}

async fn join_wave(set: &mut JoinSet<()>, slots: &Arc<Semaphore>, width: usize) {
    for _ in 0..width {
        let slot = Arc::clone(slots).acquire_owned().await.unwrap();
        set.spawn(async move {
            noop().await;
            drop(slot);
        });
        while set.try_join_next().is_some() {}
    }
    while set.join_next().await.is_some() {}
}

fn petgraph_spawn(runtime: &Runtime, graph: &Graph<'_>) {
    use petgraph::graph::{DiGraph, NodeIndex};

    let mut dag = DiGraph::<(), ()>::new();
    graph.build(|deps: &[NodeIndex]| {
        let node = dag.add_node(());
        for dep in deps {
            dag.add_edge(*dep, node, ());
        }
        node
    });
    let order = petgraph::algo::toposort(&dag, None).unwrap();
    let mut waits: Vec<usize> =
        dag.node_indices().map(|node| dag.neighbors_directed(node, petgraph::Incoming).count()).collect();
    let mut ready: std::collections::VecDeque<NodeIndex> =
        order.into_iter().filter(|node| waits[node.index()] == 0).collect();
    on_a_worker(runtime, async move {
        let mut set = JoinSet::new();
        loop {
            while set.len() < SLOTS
                && let Some(node) = ready.pop_front()
            {
                set.spawn(async move {
                    noop().await;
                    node
                });
            }
            let Some(done) = set.join_next().await else { break };
            for next in dag.neighbors(done.unwrap()) {
                waits[next.index()] -= 1;
                if waits[next.index()] == 0 {
                    ready.push_back(next);
                }
            }
        }
    });
}

/// How long a look at a hundred thousand items takes, with everything in motion.
fn look_while_running(runtime: &Runtime) {
    const ITEMS: usize = 100_000;
    let mut scheduler = scheduler();
    let shape = Shape { name: "", waves: 100, width: ITEMS / 100, fan_in: 10 };
    fill(&scheduler, &Graph::Waves(&shape));
    let handle = scheduler.handle();
    let looker = std::thread::spawn(move || {
        let mut looks = Vec::new();
        while handle.metrics().pending == ITEMS {
            std::hint::spin_loop();
        }
        while handle.metrics().finished() < ITEMS {
            let before = cpu_time_of_thread();
            let items = handle.snapshot();
            looks.push(cpu_time_of_thread() - before);
            assert_eq!(black_box(items).len(), ITEMS);
        }
        let before = cpu_time_of_thread();
        (0..1000).for_each(|_| _ = black_box(handle.metrics()));
        (looks, (cpu_time_of_thread() - before) / 1000)
    });
    runtime.block_on(scheduler.run_until_done());
    let (mut looks, metrics) = looker.join().unwrap();
    looks.sort_unstable();
    let ms = |look: Option<&Duration>| look.map_or(f64::NAN, |look| look.as_secs_f64() * 1e3);
    println!(
        "snapshot of 100 k items while running: {:.1} ms, {:.1} ms at most of {} taken; metrics: {} ns",
        ms(looks.get(looks.len() / 2)),
        ms(looks.last()),
        looks.len(),
        metrics.as_nanos()
    );
}

fn cpu_time_of_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
