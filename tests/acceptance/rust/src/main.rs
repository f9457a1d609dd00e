//! Runs one case against a service: `acceptance-rust CASE URL`. Prints one line of JSON with what the client saw and
//! exits with 0; 1: the case failed or took too long; 2: no such case. The test that started it judges what was seen.

mod cases;

use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [case, url] = arguments.as_slice() else {
        eprintln!("usage: acceptance-rust CASE URL");
        std::process::exit(2);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let seen = runtime.block_on(async {
        match tokio::time::timeout(PATIENCE, cases::run(case, url)).await {
            Ok(seen) => seen,
            Err(_) => Err(format!("case {case} did not end in {PATIENCE:?}").into()),
        }
    });
    match seen {
        Ok(Some(seen)) => println!("{seen}"),
        Ok(None) => {
            eprintln!("no such case: {case}");
            std::process::exit(2);
        }
        Err(error) => {
            eprintln!("{error} ({error:?})");
            std::process::exit(1);
        }
    }
}
