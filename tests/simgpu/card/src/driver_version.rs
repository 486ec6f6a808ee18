//! Which driver the simulated libraries play: `SIMGPU_DRIVER_VERSION`, from 12.0 to 13.2, or 13.0 if not set.
//!
//! The functions of a newer CUDA are not there for `cuGetProcAddress`; as exports they stay, since a
//! library cannot take an export back.

/// The environment variable.
pub const VARIABLE: &str = "SIMGPU_DRIVER_VERSION";

/// Version played where none is set: CUDA 13.0.
pub const NORMAL: Version = Version(13_000);

/// A CUDA version as `cuDriverGetVersion` tells it: 12.4 is 12040.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub i32);

/// Each CUDA version with the first driver that has it.
const RELEASES: [(i32, &str); 13] = [
    (12_000, "525.60.13"),
    (12_010, "530.30.02"),
    (12_020, "535.54.03"),
    (12_030, "545.23.06"),
    (12_040, "550.54.14"),
    (12_050, "555.42.02"),
    (12_060, "560.28.03"),
    (12_070, "565.57.01"),
    (12_080, "570.86.10"),
    (12_090, "575.51.03"),
    (13_000, "580.95.05"),
    (13_010, "590.44.01"),
    (13_020, "595.45.04"),
];

impl Version {
    /// Reads what the variable says.
    pub fn parse(text: &str) -> Result<Self, String> {
        let number = text.split_once('.').and_then(|(major, minor)| {
            let (major, minor): (i32, i32) = (major.parse().ok()?, minor.parse().ok()?);
            major.checked_mul(1000)?.checked_add(minor.checked_mul(10)?)
        });
        let known = number.filter(|number| RELEASES.iter().any(|(version, _)| version == number));
        known
            .map(Self)
            .ok_or_else(|| format!("{VARIABLE}={text} is not played; use 12.0 to 12.9 or 13.0 to 13.2"))
    }

    /// Version that this process' environment names.
    pub fn from_environment() -> Result<Self, String> {
        match std::env::var(VARIABLE) {
            Ok(text) => Self::parse(&text),
            Err(_) => Ok(NORMAL),
        }
    }

    /// The driver that NVML says it is.
    pub fn driver(self) -> &'static str {
        let found = RELEASES.iter().find(|(version, _)| *version == self.0);
        found.map_or("580.95.05", |(_, driver)| driver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_people_write_them() {
        assert_eq!(Version::parse("12.4"), Ok(Version(12_040)));
        assert_eq!(Version::parse("13.0"), Ok(NORMAL));
        assert_eq!(Version(12_000).driver(), "525.60.13");
    }

    #[test]
    fn what_is_not_played_is_refused_with_what_to_use() {
        for text in ["11.8", "12", "twelve", "12.99", "-1.0", ""] {
            let sentence = Version::parse(text).unwrap_err();
            assert!(sentence.contains("use 12.0 to"), "{sentence}");
        }
    }
}
