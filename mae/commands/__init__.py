"""One small file per verb: parse, call the library, print."""
