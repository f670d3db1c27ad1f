# Seconds of the longest tests on 2 cores: CTest starts the most expensive first, and a fresh clone has not measured them yet.
