"""Lightning wiring: what a step does, what is logged, what a checkpoint holds.  No maths here."""
