//! What was promised and what was measured: one model, as a table or as JSON.

use std::fmt;

use serde::Serialize;

/// The promises of one scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Promises {
    rows: Vec<Promise>,
}

/// One promise, with what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Promise {
    name: &'static str,
    op: Op,
    promised: f64,
    measured: f64,
    unit: &'static str,
    /// How far off is near enough, for [`Op::Near`].
    #[serde(skip)]
    tolerance: f64,
}

/// How the measured value must stand to the promised one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Op {
    #[serde(rename = "≤")]
    AtMost,
    #[serde(rename = "≥")]
    AtLeast,
    #[serde(rename = "±")]
    Near,
}

impl Promise {
    pub(crate) fn at_most(name: &'static str, promised: f64, measured: f64, unit: &'static str) -> Self {
        Self::new(name, Op::AtMost, promised, measured, unit)
    }

    pub(crate) fn at_least(name: &'static str, promised: f64, measured: f64, unit: &'static str) -> Self {
        Self::new(name, Op::AtLeast, promised, measured, unit)
    }

    pub(crate) fn within(
        name: &'static str,
        promised: f64,
        tolerance: f64,
        measured: f64,
        unit: &'static str,
    ) -> Self {
        let near = Self::new(name, Op::Near, promised, measured, unit);
        Self { tolerance, ..near }
    }

    /// What is printed is what is judged: the measured value in thousandths.
    fn new(name: &'static str, op: Op, promised: f64, measured: f64, unit: &'static str) -> Self {
        let measured = (measured * 1e3).round() / 1e3;
        Self { name, op, promised, measured, unit, tolerance: 0.0 }
    }

    fn kept(&self) -> bool {
        match self.op {
            Op::AtMost => self.measured <= self.promised,
            Op::AtLeast => self.measured >= self.promised,
            Op::Near => (self.measured - self.promised).abs() <= self.tolerance,
        }
    }
}

impl Promises {
    pub(crate) fn new(rows: Vec<Promise>) -> Self {
        Self { rows }
    }

    pub(crate) fn all_kept(&self) -> bool {
        self.rows.iter().all(Promise::kept)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtMost => "≤",
            Self::AtLeast => "≥",
            Self::Near => "±",
        })
    }
}

impl fmt::Display for Promises {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<74}{:>14}{:>14}", "", "promised", "measured")?;
        for row in &self.rows {
            let promised = format!("{} {} {}", row.op, row.promised, row.unit);
            let measured = format!("{} {}", row.measured, row.unit);
            let verdict = if row.kept() { "" } else { "  BROKEN" };
            write!(f, "\n{:<74}{promised:>14}{measured:>14}{verdict}", row.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_is_kept_up_to_its_bound_and_not_beyond() {
        assert!(Promise::at_most("a", 1.15, 1.15, "×").kept());
        assert!(!Promise::at_most("a", 1.15, 1.151, "×").kept());
        assert!(Promise::at_least("a", 3.0, 3.0, "×").kept());
        assert!(!Promise::at_least("a", 3.0, 2.999, "×").kept());
    }

    #[test]
    fn what_is_near_enough_may_be_off_either_way() {
        let near = |measured| Promise::within("a", 25.0, 2.0, measured, "%").kept();
        assert!(near(27.0) && near(23.0));
        assert!(!near(27.01) && !near(22.99));
    }

    #[test]
    fn what_was_not_a_number_keeps_no_promise() {
        assert!(!Promise::at_most("a", 1.15, f64::NAN, "×").kept());
        assert!(!Promise::at_least("a", 3.0, f64::NAN, "×").kept());
    }

    #[test]
    fn one_broken_promise_is_enough_to_fail() {
        let kept = Promise::at_most("a", 1.15, 1.0, "×");
        let broken = Promise::at_least("b", 3.0, 2.0, "×");
        assert!(Promises::new(vec![kept.clone()]).all_kept());
        let promises = Promises::new(vec![kept, broken]);
        assert!(!promises.all_kept());
        assert_eq!(promises.to_string().matches("BROKEN").count(), 1, "the table points at the broken one");
    }

    #[test]
    fn the_rows_are_one_line_of_json() {
        let promises = Promises::new(vec![Promise::at_most("a", 1.15, 1.067_23, "×")]);
        assert_eq!(
            serde_json::to_string(&promises).unwrap(),
            r#"{"rows":[{"name":"a","op":"≤","promised":1.15,"measured":1.067,"unit":"×"}]}"#
        );
    }
}
