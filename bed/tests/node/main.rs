//! Plimsoll as users run it: its image in pods of a real node. Each test states one property.
//!
//! They share a node and run one after the other. Where they can't run they say so in one line, and
//! fail only with `NODE=require`. Those that take minutes are left out without `--include-ignored`.

mod adapter;
mod applications;
mod certificates;
mod cgroups;
mod demo;
mod drain;
mod failover;
mod faults;
mod images;
mod install;
mod installation;
mod isolation;
mod keda;
mod load;
mod machine;
mod node;
mod processes;
mod quickstart;
mod rollout;
mod scaling;
mod upgrade;
mod usage;

use isolation::{Isolated, Needs};
use libtest_mimic::{Arguments, Trial};
use node::Node;
use std::process::ExitCode;

type Test = fn(&'static Node);

/// The tests that `make test` runs, in the order of what is installed.
const TESTS: [(&str, Test); 9] = [
    ("install::kustomize_gives_ready_pods_and_available_apis", install::kustomize),
    ("scaling::pods_come_and_go_with_the_requests_through_a_service", scaling::requests),
    ("usage::kubectl_top_shows_what_cadvisor_measures", usage::top),
    ("install::a_changed_config_map_is_taken_up_without_a_restart", install::reload),
    ("rollout::no_request_fails_while_a_rollout_replaces_the_pods", rollout::requests),
    ("failover::a_stopped_leader_is_replaced_and_restarted", failover::stopped),
    ("install::the_commands_of_the_page_install_it_with_helm", install::helm),
    ("scaling::the_example_of_the_design_document_scales", scaling::design_document),
    ("scaling::an_external_metric_scales_to_zero_and_back", scaling::zero),
];

/// Those that `make test-all` and `make test-node` run, too.
const LONG: [(&str, Test); 10] = [
    ("usage::cpu_scales_as_by_kube_controller_manager", usage::cpu),
    ("certificates::a_new_certificate_in_the_secret_is_served", certificates::secret),
    ("faults::a_leader_that_runs_out_of_memory_is_replaced", faults::memory),
    ("faults::a_leader_without_a_network_for_a_minute_is_replaced", faults::network),
    ("drain::a_drain_moves_the_leader_and_keeps_the_budget", drain::moved),
    ("upgrade::workloads_are_left_alone_by_an_upgrade_and_the_uninstall", upgrade::chart),
    ("adapter::hpas_have_metrics_while_plimsoll_takes_the_place", adapter::replaced),
    ("quickstart::its_commands_scale_podinfo_up_and_down", quickstart::followed),
    ("keda::replicas_stay_while_plimsoll_takes_the_place", keda::replaced),
    ("certificates::the_token_of_the_service_account_is_renewed", certificates::token),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They share a node.
    arguments.test_threads = Some(1);
    let trial = |(name, test): (&str, Test)| {
        Trial::test(name, move || {
            let node = Node::shared();
            node.repair();
            test(node);
            Ok(())
        })
    };
    let long = LONG.map(trial).map(|trial| trial.with_ignored_flag(true));
    let trials: Vec<Trial> = TESTS.map(trial).into_iter().chain(long).collect();
    if arguments.list {
        return libtest_mimic::run(&arguments, trials).exit_code();
    }
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let (demo, required) = (variable("NODE") == "demo", variable("NODE") == "require");
    let runs = |module: &str| {
        let here = |trial: &&Trial| trial.name().starts_with(module);
        let left_out = |trial| arguments.is_ignored(trial) || arguments.is_filtered_out(trial);
        !trials.iter().filter(here).all(left_out)
    };
    let parts = [("keda::", ["keda", "keda-adapter"]), ("quickstart::", ["podinfo", "podcli"])];
    let parts = parts.into_iter().filter(|(module, _)| runs(module)).flat_map(|(_, parts)| parts);
    let needs =
        Needs { packages: demo || required, parts: parts.collect(), old_image: runs("upgrade::") };
    match Isolated::enter(&needs) {
        Ok(Isolated::Inside) if demo => match demo::tell(!variable("KEEP").is_empty()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("\nThe demo failed: {error}");
                ExitCode::FAILURE
            }
        },
        Ok(Isolated::Inside) => libtest_mimic::run(&arguments, trials).exit_code(),
        Ok(Isolated::Ended(code)) => code,
        Ok(Isolated::Interrupted) if demo => {
            println!("\nThe node is stopped.");
            ExitCode::SUCCESS
        }
        Ok(Isolated::Interrupted) => ExitCode::FAILURE,
        Err(reason) if demo || required => {
            eprintln!("no real node can run here: {reason}");
            ExitCode::FAILURE
        }
        Err(reason) => {
            println!("the tests on a real node are left out: {reason}");
            ExitCode::SUCCESS
        }
    }
}
