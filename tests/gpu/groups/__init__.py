"""The groups of the suite. Each module has `NEEDS`, the seconds it takes on an H100, and `run(stand)`."""
