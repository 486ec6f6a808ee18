//! Promises of the project: the bound of each measured value, and whether it holds. One model, as a table
//! or as JSON.
//!
//! ```text
//!   Check ── measure ─▶ one value per Bound ─▶ Promises ─▶ table, JSON, docs/results/scoreboard.md
//! ```
//!
//! A bound is a ratio within one run or a counted quantity, so that it says more about the code than about
//! the machine.

use std::fmt;
use std::process::ExitCode;

use anyhow::bail;
use serde::{Deserialize, Serialize};

use crate::output::{progress, result};

/// A set of values that one run measures, with the bound of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check {
    /// Name on the command line.
    pub(crate) name: &'static str,
    pub(crate) effort: Effort,
    pub(crate) bounds: &'static [Bound],
    /// Measures one value for each bound, in the order of `bounds`.
    pub(crate) measure: fn() -> anyhow::Result<Vec<f64>>,
}

/// Whether a busy machine bends the values of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Values are counted or computed in virtual time: the load of the machine does not matter.
    Counted,
    /// Values are measured by a clock, on a machine that should be idle.
    Timed,
}

/// Bound of one measured value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bound {
    pub(crate) name: &'static str,
    op: Op,
    promised: f64,
    unit: &'static str,
}

/// How a measured value must stand to the promised one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    AtMost,
    AtLeast,
    /// At most so far away from it.
    Near(f64),
}

impl Bound {
    pub(crate) const fn at_most(name: &'static str, promised: f64, unit: &'static str) -> Self {
        Self { name, op: Op::AtMost, promised, unit }
    }

    pub(crate) const fn at_least(name: &'static str, promised: f64, unit: &'static str) -> Self {
        Self { name, op: Op::AtLeast, promised, unit }
    }

    pub(crate) const fn near(name: &'static str, promised: f64, tolerance: f64, unit: &'static str) -> Self {
        Self { name, op: Op::Near(tolerance), promised, unit }
    }

    /// Judges the exact measured value. It is printed in thousandths, unless that looks like another verdict.
    pub(crate) fn judge(self, measured: f64) -> Promise {
        // A comparison with NaN is false, so NaN never holds.
        let holds = |measured: f64| match self.op {
            Op::AtMost => measured <= self.promised,
            Op::AtLeast => measured >= self.promised,
            Op::Near(tolerance) => (measured - self.promised).abs() <= tolerance,
        };
        let rounded = (measured * 1e3).round() / 1e3;
        let (holds, looks) = (holds(measured), holds(rounded));
        let measured = if looks == holds { rounded } else { measured };
        Promise {
            name: self.name.to_owned(),
            op: self.op,
            promised: self.promised,
            measured: Some(measured),
            unit: self.unit.to_owned(),
            holds: Some(holds),
            skipped: false,
            record: None,
        }
    }

    fn skip(self) -> Promise {
        Promise { measured: None, holds: None, skipped: true, ..self.judge(f64::NAN) }
    }
}

/// One promise, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Promise {
    pub(crate) name: String,
    op: Op,
    promised: f64,
    /// Nothing if it was skipped; `null` in JSON too where the value is not a number.
    pub(crate) measured: Option<f64>,
    unit: String,
    /// Nothing if it was skipped.
    pub(crate) holds: Option<bool>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) skipped: bool,
    /// Origin of a value that was measured on a real card, and not now.
    #[serde(rename = "recorded", skip_serializing_if = "Option::is_none")]
    pub(crate) record: Option<Record>,
}

/// Origin of a recorded value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) card: String,
    pub(crate) driver: String,
    pub(crate) command: String,
    pub(crate) date: String,
    pub(crate) commit: String,
}

impl Promise {
    /// The bound in words: `≤ 1.15 ×`.
    pub(crate) fn bound(&self) -> String {
        let bound = match self.op {
            Op::Near(tolerance) => format!("{} ± {tolerance} {}", self.promised, self.unit),
            op => format!("{op} {} {}", self.promised, self.unit),
        };
        bound.trim_end().to_owned()
    }

    /// The measured value with its unit.
    pub(crate) fn value(&self) -> String {
        let value = self.measured.map_or_else(String::new, |value| format!("{value} {}", self.unit));
        value.trim_end().to_owned()
    }

    /// Whether it holds, in a word; of a recorded value, whether it did, and when.
    fn verdict(&self) -> String {
        let verdict = match self.holds {
            Some(true) => "holds",
            Some(false) => "BROKEN",
            None => "skipped",
        };
        match &self.record {
            Some(record) => format!("{verdict} on {} of {}", record.card, record.date),
            None => verdict.to_owned(),
        }
    }

    /// Judges a value that was measured on a real card; `op` is the sign of its bound.
    pub(crate) fn recorded(
        name: String,
        op: &str,
        promised: f64,
        tolerance: f64,
        measured: f64,
        unit: String,
        record: Record,
    ) -> anyhow::Result<Self> {
        let op = match op {
            "≤" => Op::AtMost,
            "≥" => Op::AtLeast,
            "±" => Op::Near(tolerance),
            _ => bail!("{name}: {op} is none of ≤, ≥ and ±"),
        };
        Ok(Self {
            name,
            unit,
            record: Some(record),
            ..Bound { name: "", op, promised, unit: "" }.judge(measured)
        })
    }
}

/// Promises of one or more checks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Promises {
    pub(crate) rows: Vec<Promise>,
}

impl Check {
    /// Measures and judges. A check that cannot measure breaks all of its promises, and says why.
    pub(crate) fn judge(&self) -> Promises {
        let measured = (self.measure)().unwrap_or_else(|error| {
            progress(format_args!("{} could not be measured: {error:#}", self.name));
            Vec::new()
        });
        let measured = measured.into_iter().chain(std::iter::repeat(f64::NAN));
        Promises {
            rows: self
                .bounds
                .iter()
                .zip(measured)
                .map(|(bound, value)| bound.judge(value))
                .collect(),
        }
    }

    /// Promises of which nothing is known.
    pub(crate) fn skip(&self) -> Promises {
        Promises { rows: self.bounds.iter().map(|bound| bound.skip()).collect() }
    }

    /// Measures, prints and judges.
    pub(crate) fn run(&self, json: bool) -> anyhow::Result<ExitCode> {
        let promises = self.judge();
        result(&promises, json)?;
        Ok(promises.exit_code())
    }
}

impl Promises {
    /// Names of the promises that do not hold.
    pub(crate) fn broken(&self) -> Vec<&str> {
        self.rows
            .iter()
            .filter(|row| row.holds == Some(false))
            .map(|row| row.name.as_str())
            .collect()
    }

    /// Failure if a promise does not hold, each of which is named on stderr.
    pub(crate) fn exit_code(&self) -> ExitCode {
        for row in self.rows.iter().filter(|row| row.holds == Some(false)) {
            progress(format_args!("BROKEN: {}: {}, promised {}", row.name, row.value(), row.bound()));
        }
        if self.broken().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl Serialize for Op {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtMost => "≤",
            Self::AtLeast => "≥",
            Self::Near(_) => "±",
        })
    }
}

impl fmt::Display for Promises {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<74}{:>24}{:>24}", "", "promised", "measured")?;
        for row in &self.rows {
            write!(f, "\n{:<74}{:>24}{:>24}  {}", row.name, row.bound(), row.value(), row.verdict())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(bound: Bound, measured: f64) -> bool {
        bound.judge(measured).holds == Some(true)
    }

    #[test]
    fn a_promise_holds_up_to_its_bound_and_not_beyond() {
        let (most, least) = (Bound::at_most("a", 1.15, "×"), Bound::at_least("a", 3.0, "×"));
        assert!(holds(most, 1.15) && !holds(most, 1.151));
        assert!(!holds(most, 1.1504) && !holds(least, 2.9996));
        assert_eq!(most.judge(1.1504).value(), "1.1504 ×");
        assert_eq!(most.judge(1.1496).value(), "1.15 ×");
        assert!(holds(least, 3.0) && !holds(least, 2.999));
        let near = Bound::near("a", 25.0, 2.0, "%");
        assert!(holds(near, 27.0) && holds(near, 23.0));
        assert!(!holds(near, 27.01) && !holds(near, 22.99));
    }

    #[test]
    fn a_value_that_is_not_a_number_never_holds() {
        let bounds =
            [Bound::at_most("a", 1.0, ""), Bound::at_least("a", 0.0, ""), Bound::near("a", 1.0, 9.0, "")];
        assert!(bounds.into_iter().all(|bound| !holds(bound, f64::NAN)));
    }

    #[test]
    fn a_check_that_measures_too_little_breaks_the_rest() {
        const CHECK: Check = Check {
            name: "check",
            effort: Effort::Counted,
            bounds: &[Bound::at_most("a", 1.15, "×"), Bound::at_least("b", 3.0, "×")],
            measure: || Ok(vec![1.067_23]),
        };
        let promises = CHECK.judge();
        assert_eq!(promises.broken(), ["b"]);
        assert_eq!(promises.to_string().matches("BROKEN").count(), 1);
        assert_eq!(
            serde_json::to_string(&promises).unwrap(),
            r#"{"rows":[{"name":"a","op":"≤","promised":1.15,"measured":1.067,"unit":"×","holds":true},"#
                .to_owned()
                + r#"{"name":"b","op":"≥","promised":3.0,"measured":null,"unit":"×","holds":false}]}"#
        );
        let skipped = serde_json::to_string(&CHECK.skip().rows[0]).unwrap();
        assert!(skipped.ends_with(r#""measured":null,"unit":"×","holds":null,"skipped":true}"#), "{skipped}");
        assert!(CHECK.skip().broken().is_empty());
    }
}
