//! What does not start, and what it says.

use std::fs;

use crate::{
    KEY,
    authority::Authority,
    process::{Process, file, path},
    rig::Http,
};

const PORTS: [&str; 5] = ["frontend", "--port", "0", "--admin-port", "0"];

#[test]
fn a_frontend_does_not_start_with_what_it_cannot_keep() {
    let authority = Authority::new();
    let [certificate, key] = authority.issue("front").map(|path| path.to_str().unwrap().to_owned());
    let [_, other] = authority.issue("other").map(|path| path.to_str().unwrap().to_owned());
    let (empty, short, twice) =
        (file("# none\n"), file(format!("{KEY}\nshort")), file(format!("{KEY}\n{KEY} x")));
    let cases: &[(&[&str], &[&str])] = &[
        (&["--tls-cert", &certificate], &["--tls-cert needs --tls-key"]),
        (&["--tls-key", &key], &["--tls-key needs --tls-cert"]),
        (&["--admin-tls-cert", &certificate], &["--admin-tls-cert needs --admin-tls-key"]),
        (&["--tls-cert", &certificate, "--tls-key", &other], &["--tls-key", &other, "with the certificate"]),
        (&["--tls-cert", "/none", "--tls-key", &key], &["--tls-cert /none", "No such file"]),
        (&["--tls-cert", &key, "--tls-key", &other], &["--tls-cert", "-----BEGIN CERTIFICATE-----"]),
        (&["--worker-ca", &key], &["--worker-ca", &key, "no certificate"]),
        (&["--worker-client-cert", &certificate], &["--worker-client-cert needs --worker-client-key"]),
        (
            &["--api-keys-file", path(&empty)],
            &["--api-keys-file", path(&empty), "no key in it", "a key a line"],
        ),
        (&["--api-keys-file", path(&short)], &["--api-keys-file", "line 2", "16 to 512"]),
        (&["--api-keys-file", path(&twice)], &["--api-keys-file", "line 2", "line 1 again"]),
        (&["--worker-api-key-file", "/none"], &["--worker-api-key-file /none", "No such file"]),
        (&["--max-header-bytes", "10"], &["--max-header-bytes 10", "1024 to 262144"]),
        (&["--access-log", "/none/access"], &["--access-log /none/access", "No such file"]),
        #[cfg(not(feature = "otel"))]
        (&["--otlp-endpoint", "http://localhost:4318"], &["--otlp-endpoint", "--features otel"]),
    ];
    for (arguments, says) in cases {
        let ended = Process::run(&[&PORTS[..], *arguments].concat());
        assert_eq!(ended.code, Some(1), "{arguments:?}: {}", ended.stderr);
        for part in *says {
            assert!(ended.stderr.contains(part), "{arguments:?}: no {part} in {}", ended.stderr);
        }
        assert!(!ended.stderr.contains("sk-"), "{}", ended.stderr);
    }
    let ended = Process::run(&[&PORTS[..], &["--otlp-endpoint", "localhost:4318"]].concat());
    assert!(ended.code == Some(2) && ended.stderr.contains("http://localhost:4318"), "{}", ended.stderr);
    for flag in ["--max-concurrent-requests", "--max-connections"] {
        let ended = Process::run(&[&PORTS[..], &[flag, "0"]].concat());
        assert!(ended.code == Some(2) && ended.stderr.contains(flag), "{}", ended.stderr);
    }
}

#[test]
fn a_check_finds_it_in_the_file_with_its_line() {
    let keys = file("short");
    let text = format!("[frontend]\nport = 1\napi_keys_file = '{}'\n", path(&keys));
    for (text, line, says) in [
        (text.as_str(), "3", "--api-keys-file"),
        ("[frontend]\ntls_cert = '/none'\n", "2", "needs --tls-key"),
        ("[frontend]\nport = 1\nworker_ca = '/none'\n", "3", "No such file"),
    ] {
        let config = file(text);
        let ended = Process::run(&["config", "check", path(&config)]);
        let said = format!("{}{}", ended.stdout, ended.stderr);
        let found = said.lines().any(|found| found.contains(&format!(":{line}:")) && found.contains(says));
        assert!(ended.code != Some(0) && found, "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_reads_the_keys_again_and_ends_nothing() {
    let keys = file(KEY);
    let router = Process::start(&[&PORTS[..], &["--api-keys-file", path(&keys)]].concat());
    let up = router.logged("frontend is up").await;
    let url = format!("http://{}/v1/models", up["public"].as_str().unwrap());
    fs::write(keys.path(), "sk-cccccccccccccccc").unwrap();
    router.signal("HUP");
    router.logged("read again").await;
    for (key, status) in [(KEY, 401), ("sk-cccccccccccccccc", 200)] {
        let shown = [("authorization", &*crate::bearer(key))];
        let answer = Http::new().request(http::Method::GET, &url, &shown, &serde_json::Value::Null).await;
        assert_eq!(answer.status, status);
    }
    router.signal("TERM");
    let ended = router.end();
    assert!(ended.code == Some(0) && !ended.stderr.contains("sk-"), "{}", ended.stderr);
}
