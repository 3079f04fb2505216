//! `make demo`: load rises and falls on a real cluster, and Plimsoll scales the workload to it.

mod stage;

use bed::{Bed, Options, pages, story};
use stage::Loopback;
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let keep = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => false,
        ["--keep"] => true,
        ["--stop"] => return stop_kept(),
        _ => {
            eprintln!("usage: demo [--keep | --stop]");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let result = runtime.block_on(async {
        let demo = async {
            tokio::select! {
                result = run(keep) => result,
                _ = tokio::signal::ctrl_c() => Err("interrupted".to_owned()),
            }
        };
        match tokio::time::timeout(Duration::from_secs(300), demo).await {
            Ok(result) => result,
            Err(_) => Err("it took longer than 300 s".to_owned()),
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nThe demo failed: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(keep: bool) -> Result<(), String> {
    let start = Instant::now();
    println!(
        "Plimsoll scales a workload, on etcd, kube-apiserver, kube-controller-manager, kube-scheduler"
    );
    println!("(v1.36.3) and Prometheus, all on loopback.\n");
    let progress = |what: &str| println!("  {what} ...");
    let bed = Bed::start(Options { keep, progress, ..Options::default() }).await;
    println!("  ready after {:.1} s\n", start.elapsed().as_secs_f64());
    if keep {
        record(&bed);
    }
    let summary = story::run(&Loopback(&bed)).await?;
    println!("\n{summary}  whole demo          {:.0} s", start.elapsed().as_secs_f64());
    println!("\n{}", story::explanation(&bed.cluster, &bed::plimsoll::binary()).await?);
    if keep {
        let commands = pages::commands(&bed.cluster, &bed::plimsoll::binary());
        println!("\nThe cluster keeps running. For a shell:\n");
        println!("  export KUBECONFIG={}", bed.cluster.kubeconfig.display());
        println!("  export PATH={}:$PATH", commands.display());
        println!("\nTry: kubectl plimsoll explain web -n shop\n");
        println!("  the page    kubectl plimsoll ui");
        println!("  Prometheus  http://127.0.0.1:{}", bed.cluster.prometheus_port);
        println!("  Plimsoll    https://127.0.0.1:{}", bed.plimsoll.port);
        println!("  logs        {}", bed.cluster.folder.display());
        println!("\n`make demo-stop` stops it.");
    }
    Ok(())
}

/// The file with the folders of the clusters that `--keep` left running.
fn kept() -> std::path::PathBuf {
    bed::root().join(".cache/kept-demos")
}

fn record(bed: &Bed) {
    use std::io::Write;
    let file = std::fs::File::options().create(true).append(true).open(kept());
    let folder = bed.cluster.folder.display();
    let written = file.and_then(|mut file| writeln!(file, "{folder}"));
    written.expect("the cache folder can be written to");
}

fn stop_kept() -> ExitCode {
    let Ok(folders) = std::fs::read_to_string(kept()) else {
        println!("nothing is running");
        return ExitCode::SUCCESS;
    };
    for folder in folders.lines() {
        let pids = std::fs::read_to_string(format!("{folder}/pids")).unwrap_or_default();
        for pid in pids.lines() {
            // Only our guards: the process id may be reused.
            let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
            if command.is_ok_and(|command| command.contains("guard\0-keep")) {
                let _ = std::process::Command::new("kill").arg(pid).status();
            }
        }
        std::thread::sleep(Duration::from_secs(1));
        let _ = std::fs::remove_dir_all(folder);
        println!("stopped {folder}");
    }
    let _ = std::fs::remove_file(kept());
    ExitCode::SUCCESS
}
