//! The graph as DOT and Mermaid, in whole texts.

use dragnet_work::{WorkOutcome, WorkSpec, to_dot, to_mermaid, work_fn};

use crate::kit::scheduler;

async fn finished_graph() -> Vec<dragnet_work::WorkSnapshot> {
    let mut scheduler = scheduler(1);
    let ok = |name: &str| WorkSpec::new(work_fn(name, async |_| ()));
    let fetch = scheduler.add(ok("fetch \"a & b\"")).unwrap();
    let check = work_fn("check", async |_| WorkOutcome::failed("checksum"));
    let check = scheduler.add(WorkSpec::new(check).after([fetch])).unwrap();
    scheduler.add(ok("apply").after([fetch, check])).unwrap();
    let parent = work_fn("parent", async |ctx: dragnet_work::WorkContext| {
        ctx.add_child(WorkSpec::new(work_fn("child", async |_| ()))).map(|_| ())
    });
    scheduler.add(WorkSpec::new(parent)).unwrap();
    scheduler.run_until_done().await;
    scheduler.snapshot()
}

#[tokio::test(start_paused = true)]
async fn the_graph_as_dot() {
    insta::assert_snapshot!(to_dot(&finished_graph().await), @r##"
    digraph work {
      rankdir=LR;
      node [shape=box, style="rounded,filled"];
      "#0" [label="fetch \"a & b\"\nsuccess", fillcolor="#c8e6c9"];
      "#1" [label="check\nfailed", fillcolor="#ffcdd2"];
      "#0" -> "#1";
      "#2" [label="apply\nblocked", fillcolor="#d7ccc8"];
      "#0" -> "#2";
      "#1" -> "#2";
      "#3" [label="parent\nsuccess", fillcolor="#c8e6c9"];
      "#4" [label="child\nsuccess", fillcolor="#c8e6c9"];
      "#3" -> "#4" [style=dashed];
    }
    "##);
}

#[tokio::test(start_paused = true)]
async fn the_graph_as_mermaid() {
    insta::assert_snapshot!(to_mermaid(&finished_graph().await), @r##"
    flowchart LR
      w0_0["fetch #quot;a #amp; b#quot;<br/>success"]:::success
      w1_0["check<br/>failed"]:::failed
      w0_0 --> w1_0
      w2_0["apply<br/>blocked"]:::blocked
      w0_0 --> w2_0
      w1_0 --> w2_0
      w3_0["parent<br/>success"]:::success
      w4_0["child<br/>success"]:::success
      w3_0 -.-> w4_0
      classDef success fill:#c8e6c9
      classDef failed fill:#ffcdd2
      classDef blocked fill:#d7ccc8
    "##);
}
