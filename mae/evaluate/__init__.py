"""Reading frozen encoders: features, heads, baselines, intervals, and the probe built from them."""
