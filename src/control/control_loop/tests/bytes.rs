//! How many bytes the loop keeps of each autoscaler (docs/growth.md). `--nocapture` prints them.

use super::*;
use tokio::runtime::Builder;

const AUTOSCALERS: usize = 500;

/// Adds a workload, its pods and an Autoscaler of it.
fn put_app(control: &mut ControlLoop, app: usize) {
    let name = format!("app-{app}");
    let key = |name: &str| ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() };
    control.ctx.cluster.write(|index| {
        let scale = scale_record(3, &format!("app={name}"));
        index.put_scale(watch::Workload::Deployment, key(&name), scale);
        for pod in 0..3 {
            let object = json!({"metadata": {"labels": {"app": name}},
                "spec": {"containers": []}, "status": {"phase": "Running"}});
            let record = read_pod(serde_json::from_value(object).unwrap());
            index.put_pod(key(&format!("{name}-{pod}")), record);
        }
    });
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name});
    let autoscaler = put(control, &name, json!({"scaleTargetRef": target, "maxReplicas": 9}));
    control.changed(autoscaler);
}

/// Evaluates all that are due.
async fn evaluate_due(control: &mut ControlLoop) {
    control.start_due();
    while let Some(done) = control.evaluations.join_next().await {
        control.evaluated(done.unwrap());
    }
}

#[test]
fn the_loop_keeps_few_bytes_of_each_autoscaler() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut control = runtime.block_on(async {
        let (mut control, _) = World::new(3, Some(3), |_, _| None).run();
        let shared = Arc::get_mut(&mut control.ctx).expect("the only reference");
        shared.ledger = Ledger::new(0, 0);
        put_app(&mut control, AUTOSCALERS);
        evaluate_due(&mut control).await;
        for app in 0..AUTOSCALERS {
            put_app(&mut control, app);
        }
        control
    });
    let taken = allocation_counter::measure(|| runtime.block_on(evaluate_due(&mut control)));
    assert_eq!((control.states.len(), control.failing.len()), (AUTOSCALERS + 1, 0));
    let each = taken.bytes_current / AUTOSCALERS as i64;
    let most = taken.bytes_max / AUTOSCALERS as u64;
    println!("an autoscaler {each} bytes after its first evaluation, {most} during those of all");
    let state = size_of::<AutoscalerState>();
    println!("its state {state} of them");
    // The allocator has no size between this one and 1,280.
    assert!(each <= 3_700 && state <= 1_024, "{each} and {state}");
}
