//! What device the stand-in pretends to be, and which calls fail.
//!
//! They are in the variable `CUDA_STAND_IN`, which is read at the first call: `NAME=VALUE`, cut by commas.
//!
//! | name | default | what |
//! |---|---|---|
//! | `devices` | 1 | how many there are |
//! | `driver` | 12090 | the version of CUDA that the driver is for; PTX that is newer is refused |
//! | `capability` | 90 | of the devices, in tenths; kernels for newer ones are refused |
//! | `memory_mib` | 256 | of each device |
//! | `cuSomething` | | the code that this function returns, at every call |
//! | `cuSomething@3` | | the same, at the third call only |
//! | `report` | | the file to write a report to when the context is released |

use std::collections::HashMap;

/// The variable.
pub const VARIABLE: &str = "CUDA_STAND_IN";

/// Everything that a test may set.
#[derive(Clone, Debug)]
pub struct Settings {
    pub devices: i32,
    pub driver: i32,
    pub capability: u32,
    pub memory_mib: usize,
    pub report: Option<String>,
    /// The code by function, and by the call at which it is returned if that is not every one.
    pub failures: HashMap<(String, Option<u64>), u32>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            devices: 1,
            driver: 12090,
            capability: 90,
            memory_mib: 256,
            report: None,
            failures: HashMap::new(),
        }
    }
}

impl Settings {
    /// Reads the variable's form.
    ///
    /// # Panics
    /// On what is not understood: a test that asks for a failure must not pass because nobody heard.
    pub fn parse(text: &str) -> Self {
        let mut settings = Self::default();
        for entry in text.split(',').filter(|entry| !entry.is_empty()) {
            let read = || {
                let (name, value) = entry.split_once('=')?;
                Some((name, value, value.parse::<u32>()))
            };
            let (name, value, number) =
                read().unwrap_or_else(|| panic!("{VARIABLE}: '{entry}' has no value"));
            if name == "report" {
                settings.report = Some(value.to_owned());
                continue;
            }
            let number = number.unwrap_or_else(|_| panic!("{VARIABLE}: '{entry}' is no number"));
            match name {
                "devices" => settings.devices = number as i32,
                "driver" => settings.driver = number as i32,
                "capability" => settings.capability = number,
                "memory_mib" => settings.memory_mib = number as usize,
                function if function.starts_with("cu") => {
                    let (function, at) = match function.split_once('@') {
                        Some((function, at)) => (function, at.parse().ok()),
                        None => (function, None),
                    };
                    settings.failures.insert((function.to_owned(), at), number);
                }
                other => panic!("{VARIABLE}: nothing is called '{other}'"),
            }
        }
        settings
    }

    /// What `function` returns at its `call`-th call, if it fails there.
    pub fn failure(&self, function: &str, call: u64) -> Option<u32> {
        let at = |at| self.failures.get(&(function.to_owned(), at)).copied();
        at(Some(call)).or_else(|| at(None))
    }

    /// The newest PTX that the driver takes, in tenths, by NVIDIA's table of releases.
    pub fn newest_ptx(&self) -> u32 {
        match self.driver {
            13000.. => 90,
            12090.. => 88,
            12000.. => 80,
            11080.. => 78,
            11000.. => 70,
            10000.. => 63,
            9000.. => 60,
            _ => 50,
        }
    }
}
