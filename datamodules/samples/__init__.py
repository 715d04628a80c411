"""Real images out of installable data packages, for the demo and the tests."""
