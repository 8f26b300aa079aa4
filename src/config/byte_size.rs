//! Amounts of memory as people write them.

use std::str::FromStr;

use serde::Deserialize;

/// A number of bytes: `1073741824`, `1048576KiB`, `1024MiB`, `1GiB`. At least a mebibyte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "Written")]
pub struct ByteSize(pub u64);

/// As in a file: a number or a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Text(String),
}

const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
const LEAST: u64 = 1 << 20;

impl ByteSize {
    fn new(bytes: u64) -> Result<Self, String> {
        if bytes < LEAST {
            return Err(format!(
                "{bytes} bytes are too few: give at least 1MiB, or leave it out for no limit"
            ));
        }
        Ok(Self(bytes))
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unit = UNITS.into_iter().find_map(|(unit, power)| Some((text.strip_suffix(unit)?, power)));
        let (number, power) = unit.unwrap_or((text, 0));
        let bytes = number.trim_end().parse::<u64>().ok().and_then(|number| number.checked_mul(1 << power));
        let accepted = "a whole number of bytes, or of KiB, MiB, GiB or TiB (512MiB, 4GiB)";
        Self::new(bytes.ok_or_else(|| format!("'{text}' is not {accepted}"))?)
    }
}

impl TryFrom<Written> for ByteSize {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Number(bytes) => Self::new(bytes),
            Written::Text(text) => text.parse(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_bytes_and_binary_units() {
        for (text, bytes) in
            [("1048576", 1 << 20), ("512MiB", 512 << 20), ("4GiB", 4 << 30), ("2048 KiB", 2 << 20)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_is_accepted() {
        for text in ["", "much", "4GB", "1.5GiB", "-1", "99999999TiB", "4 GiB more"] {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert!(error.contains("512MiB"), "{text}: {error}");
        }
        assert!("1000".parse::<ByteSize>().unwrap_err().contains("at least 1MiB"));
    }

    #[test]
    fn a_file_may_have_a_number_or_a_text() {
        #[derive(Deserialize)]
        struct File {
            limit: ByteSize,
        }
        let read = |file: &str| toml::from_str::<File>(file).map(|file| file.limit);
        assert_eq!(read("limit = 2097152").unwrap(), ByteSize(2 << 20));
        assert_eq!(read("limit = '2MiB'").unwrap(), ByteSize(2 << 20));
        assert!(read("limit = '2MB'").is_err() && read("limit = 7").is_err());
    }
}
