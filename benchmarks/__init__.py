"""Speed against the best peer, as ratios: ``python -m benchmarks.tasks [--json]``. Not part of the installed package."""
