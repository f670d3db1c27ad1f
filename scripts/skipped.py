#!/usr/bin/env python3
"""Prints what a ctest run skipped and why, from its JUnit file: a skip must never look like a pass."""
import re
import sys
import textwrap
import xml.etree.ElementTree as xml


def reason(case):
    """The program's own words: "manyranks: skipped (gpu): no CUDA device". """
    output = case.findtext("system-out") or ""
    found = re.search(r"skipped \((\w+)\): (.*)", output)
    return found.groups() if found else ("?", "no reason given: that is a defect of the test")


def main(path):
    try:
        cases = list(xml.parse(path).getroot().iter("testcase"))
    except (OSError, xml.ParseError) as error:
        sys.exit(f"skipped.py: cannot read {path}: {error}")
    skipped = {}
    for case in cases:
        if case.get("status") == "notrun" or case.find("skipped") is not None:
            skipped.setdefault(reason(case), []).append(case.get("name"))
    failed = sum(case.find("failure") is not None for case in cases)
    if skipped:
        print("\nSkipped, and why (MANYRANKS_REQUIRE=need,... turns these into failures):")
        for (need, why), names in sorted(skipped.items()):
            print(f"  {need:10}  {why}  ({len(names)} test{'s' * (len(names) > 1)})")
            print(textwrap.fill(" ".join(sorted(names)), 120, initial_indent=" " * 14, subsequent_indent=" " * 14, break_on_hyphens=False))
    skips = sum(map(len, skipped.values()))
    print(f"\n{len(cases) - skips - failed} passed, {failed} failed, {skips} skipped")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: skipped.py JUNIT.xml")
    main(sys.argv[1])
