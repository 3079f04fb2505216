//! Plimsoll as users run it: its image in pods of a real node. Each test states one property.
//!
//! They share a node and run one after the other. Where they can't run they say so in one line, and
//! fail only with `NODE=require`.

mod failover;
mod images;
mod install;
mod isolation;
mod load;
mod node;
mod processes;
mod rollout;
mod scaling;
mod usage;

use isolation::Isolated;
use libtest_mimic::{Arguments, Trial};
use node::Node;
use std::process::ExitCode;

type Test = fn(&Node);

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They share a node.
    arguments.test_threads = Some(1);
    let tests: [(&str, Test); 7] = [
        ("install::kustomize_gives_ready_pods_and_available_apis", install::kustomize),
        ("install::a_changed_config_map_is_taken_up_without_a_restart", install::reload),
        ("scaling::pods_come_and_go_with_the_requests_through_a_service", scaling::requests),
        ("usage::kubectl_top_shows_what_cadvisor_measures", usage::top),
        ("rollout::no_request_fails_while_a_rollout_replaces_the_pods", rollout::requests),
        ("failover::a_stopped_leader_is_replaced_and_restarted", failover::stopped),
        ("install::the_commands_of_the_page_install_it_with_helm", install::helm),
    ];
    let trials = tests.map(|(name, test)| {
        Trial::test(name, move || {
            test(Node::shared());
            Ok(())
        })
    });
    if arguments.list {
        return libtest_mimic::run(&arguments, trials.into()).exit_code();
    }
    match Isolated::enter() {
        Ok(Isolated::Inside) => libtest_mimic::run(&arguments, trials.into()).exit_code(),
        Ok(Isolated::Ended(code)) => code,
        Err(reason) if std::env::var("NODE").is_ok_and(|node| node == "require") => {
            eprintln!("the tests on a real node can't run: {reason}");
            ExitCode::FAILURE
        }
        Err(reason) => {
            println!("the tests on a real node are skipped: {reason}");
            ExitCode::SUCCESS
        }
    }
}
