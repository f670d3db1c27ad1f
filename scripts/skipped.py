#!/usr/bin/env python3
"""Prints what a ctest run skipped and why, from its JUnit file: a skip must never look like a pass."""
import re
import sys
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
    skipped = [(case.get("name"), *reason(case)) for case in cases if case.get("status") == "notrun" or case.find("skipped") is not None]
    failed = sum(case.find("failure") is not None for case in cases)
    if skipped:
        width = max(len(name) for name, _, _ in skipped)
        print("\nSkipped, and why (MANYRANKS_REQUIRE=need,... turns these into failures):")
        for name, need, why in sorted(skipped):
            print(f"  {name:{width}}  {need:10}  {why}")
    print(f"\n{len(cases) - len(skipped) - failed} passed, {failed} failed, {len(skipped)} skipped")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: skipped.py JUNIT.xml")
    main(sys.argv[1])
