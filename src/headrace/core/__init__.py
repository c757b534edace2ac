"""core: machines that decide; no clock, no waiting, no files. Time, ids and chance come in as arguments."""
