"""What the suite says in the end: checks that passed or failed, rows of a table, and every raw sample.

    check ──┬─> stdout, as it happens        table.md      the rows and what failed
    row   ──┼─> stdout, at the end           figures.json  all of it, with date, card, driver and commands
    sample ─┘                                   logs.tar.gz    what every process said

The files are written anew after every group, so that a suite that is killed leaves what it had.
"""

import datetime
import json
import tarfile
from dataclasses import asdict

SHOWN = 1500


class Figures:
    def __init__(self, out, logs, card, arguments):
        self.out, self.logs, self.card, self.arguments = out, logs, card, arguments
        self.date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self.checks, self.rows, self.samples, self.commands = [], [], {}, {}

    def group(self, name):
        print(f"\n{name}", flush=True)

    def check(self, name, good, said=""):
        """A claim that holds or not. `said` is shown when it does not. Returns whether it holds."""
        good = bool(good)
        self.checks.append({"name": name, "passed": good, "said": "" if good else str(said)})
        print(f"  {'ok  ' if good else 'FAIL'} {name}{'' if good else ': ' + short(said)}", flush=True)
        return good

    def equal(self, name, measured, expected):
        return self.check(name, measured == expected, f"{measured!r} instead of {expected!r}")

    def row(self, name, value):
        """A line of the table."""
        self.rows.append({"name": name, "value": str(value)})
        print(f"       {name}: {value}", flush=True)

    def sample(self, name, value):
        """A raw measurement; those of one name are a list in the order they came."""
        self.samples.setdefault(name, []).append(value)

    def command(self, name, command):
        self.commands.setdefault(name, [str(word) for word in command])

    def finish(self, seconds):
        """Writes the files and prints the table; the exit code."""
        self.save(seconds)
        print("\n" + self.table(seconds), end="", flush=True)
        return 0 if all(check["passed"] for check in self.checks) and self.checks else 1

    def save(self, seconds):
        everything = {
            "date": self.date,
            "card": asdict(self.card),
            "managed_limit_mib": self.card.managed_limit_mib,
            "arguments": self.arguments,
            "seconds": round(seconds, 1),
            "checks": self.checks,
            "rows": self.rows,
            "commands": self.commands,
            "samples": self.samples,
        }
        (self.out / "figures.json").write_text(json.dumps(everything, indent=1) + "\n")
        (self.out / "table.md").write_text(self.table(seconds))
        with tarfile.open(self.out / "logs.tar.gz", "w:gz") as archive:
            archive.add(self.logs, arcname="logs")

    def table(self, seconds):
        failed = [check for check in self.checks if not check["passed"]]
        lines = [f"{self.card.name}, driver {self.card.driver}, {self.date}, {seconds:.0f} s", ""]
        lines += ["| figure | value |", "|---|---|"]
        lines += [f"| {row['name']} | {row['value']} |" for row in self.rows]
        lines += [""] + [f"failed: {check['name']}: {short(check['said'])}" for check in failed]
        lines += [f"{len(self.checks) - len(failed)} passed, {len(failed)} failed", ""]
        return "\n".join(lines)


def short(said):
    """What fits a line; figures.json has the whole."""
    said = str(said)
    return said if len(said) <= SHOWN else f"{said[:SHOWN]} ... ({len(said)} characters)"
