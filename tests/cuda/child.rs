//! A test in a process of its own, with the CUDA driver that it wants.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use tempfile::TempDir;

use crate::stand_in_library;

/// Set in a process that was started for one test.
const CHILD: &str = "KVROUTE_TEST_CHILD";

/// What the process finds when it looks for the CUDA driver.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Library<'a> {
    /// The stand-in, with settings as its own documentation has them.
    StandIn(&'a str),
    /// The stand-in without the function of this name.
    Without(&'a str),
    /// None.
    None,
}

/// Runs `body` in a process of its own. `name` is that of the test, with its module.
pub(crate) fn run(name: &str, library: Library<'_>, body: impl FnOnce()) {
    #[expect(clippy::disallowed_methods, reason = "how a process knows that it was started for this")]
    if env::var_os(CHILD).is_some() {
        body();
        return;
    }
    let folder = place(library);
    let settings = if let Library::StandIn(settings) = library { settings } else { "" };
    let output = Command::new(env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env("CUDA_STAND_IN", settings.replace("REPORT", folder.path().join("report").to_str().unwrap()))
        .env("LD_LIBRARY_PATH", folder.path())
        .output()
        .unwrap();
    let [out, error] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && out.contains("1 passed"), "{name}:\n{out}\n{error}");
}

/// Where the process reads what the stand-in reported when its context was released: settings of `report=REPORT` ask for it.
pub(crate) fn report() -> String {
    #[expect(clippy::disallowed_methods, reason = "set by the process that started this one")]
    let folder = env::var_os("LD_LIBRARY_PATH").unwrap();
    fs::read_to_string(Path::new(&folder).join("report")).unwrap()
}

/// A folder in which the dynamic linker looks before all others. Also on a machine with a driver nothing else is found, by
/// any of the two names that drivers have.
fn place(library: Library<'_>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let content = match library {
        Library::StandIn(_) => fs::read(built()).unwrap(),
        Library::Without(function) => without(fs::read(built()).unwrap(), function),
        Library::None => b"no library".to_vec(),
    };
    for name in ["libcuda.so", "libcuda.so.1"] {
        fs::write(folder.path().join(name), &content).unwrap();
    }
    folder
}

/// The library with another name in place of a function's, wherever it stands: the dynamic linker does not find it then.
fn without(mut library: Vec<u8>, function: &str) -> Vec<u8> {
    let name = format!("{function}\0").into_bytes();
    let places: Vec<_> =
        library.windows(name.len()).enumerate().filter(|(_, found)| *found == name).collect();
    let places: Vec<_> = places.into_iter().map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the stand-in has no {function}");
    for at in places {
        library[at] = b'x';
    }
    library
}

fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| stand_in_library::build("cuda-stand-in"))
}
