//! `plimsoll ui`: a page in the browser that shows all autoscalers, and why each scales as it does. It is
//! served on loopback, reads the cluster with the user's own kubeconfig, and writes nothing.

mod access;
mod assets;
mod browser;
mod earlier;
mod error;
mod lean;
mod listen;
mod one;
mod problems;
mod reflect;
mod row;
mod rows;
mod serve;
mod swings;
mod trials;
mod watching;
mod write_timeout;

pub use error::UiError;

use crate::clock::Clock;
use crate::config::UiFlags;
use crate::connect::{self, AsKubectl, READ_TIMEOUT};
use crate::supervise::Tasks;
use access::Access;
use rows::Rows;
use serve::Page;
use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use trials::Trials;

/// Serves the page until Ctrl-C, and opens it in the browser. Its address is written to `out`.
///
/// # Errors
/// As [`UiError`] says.
pub async fn run(flags: &UiFlags, out: &mut impl Write) -> Result<(), UiError> {
    let clock = Clock::default();
    let AsKubectl { client, context, .. } =
        connect::as_kubectl(&flags.kubectl, READ_TIMEOUT, clock.clone()).await?;
    let bind = |error| UiError::Bind { port: flags.port, error };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, flags.port)).await.map_err(bind)?;
    let port = listener.local_addr().map_err(bind)?.port();
    let trials = Trials::new(client.clone(), flags)?;
    let access = Access::new(port)?;
    let address = access.address();
    let rows = Rows::new(clock);
    let scope = scope(flags, context.as_deref());
    let page = Page::new(access, client.clone(), rows.clone(), scope, trials);

    let stop = stop_signal().map_err(UiError::Signals)?;
    let mut tasks = Tasks::default();
    let namespace = flags.namespace.as_deref();
    for task in reflect::all(&client, namespace, &rows) {
        tasks.spawn("watch", task);
    }
    tasks.spawn("sweep", rows.clone().run_sweeper());
    tasks.spawn("earlier decisions", earlier::run(client, rows));
    let _ = writeln!(out, "The page is at {address}\nCtrl-C ends it.");
    if !flags.no_browser {
        // Such as one that may not read files outside of the home directory.
        let _ = writeln!(out, "If the browser shows an error, open that address in it.");
    }
    let _ = out.flush();
    let opened = match flags.no_browser {
        true => None,
        false => browser::open(&address)
            .inspect_err(|error| {
                let _ = writeln!(out, "No browser was opened ({error}): open that address in one.");
            })
            .ok(),
    };
    let router = serve::router(Arc::new(page));
    let ended = tokio::select! {
        () = listen::serve(listener, router) => Ok(()),
        () = stop => Ok(()),
        ended = tasks.first_end() => Err(UiError::Ended(ended)),
    };
    // The file with the address.
    drop(opened);
    ended
}

/// Ends at Ctrl-C, at SIGTERM, and when the terminal is closed.
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

/// What the page shows, in words.
fn scope(flags: &UiFlags, context: Option<&str>) -> String {
    let place = match context {
        Some(context) => format!("Context {context}"),
        None => "The cluster of this pod".to_owned(),
    };
    match &flags.namespace {
        Some(namespace) => format!("{place}, namespace {namespace}"),
        None => format!("{place}, all namespaces"),
    }
}
