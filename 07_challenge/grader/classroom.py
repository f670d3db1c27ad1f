"""Grades a class: DIR/<student>/<exercise>.cpp. Reads there and writes nothing there; the table goes to a CSV."""
import csv
import io
import os
import pathlib

import grading
import skeleton


def files_of(folder, name):
    """Regular files of that name, in any sub-folder of the student's; folders that cannot be opened are passed over."""
    found = []
    for here, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if each != "newer"]
        found += [pathlib.Path(here, name)] if name in files else []
    return sorted(found)


def collect(folder, exercises):
    """{exercise name: (text or None, note)} of one student. What cannot be read costs this student's points for it, and nobody else's."""
    texts = {}
    for exercise in exercises:
        found = files_of(folder, f"{exercise.name}.cpp")
        if found:
            text = skeleton.read_text(found[0])
            note = f"{found[0]} cannot be read, is no text of at most {skeleton.MOST_BYTES >> 20} MiB, or no file" if text is None else ""
            texts[exercise.name] = text, note or (f"{len(found)} files of that name; graded {found[0]}" if len(found) > 1 else "")
    return texts


def grade_student(texts, exercises, court):
    """Missing ones are 0 points, and said to be missing."""
    results = []
    for exercise in exercises:
        text, note = texts.get(exercise.name, (None, ""))
        if text is None:
            results.append(grading.without_points(exercise, "cannot be read" if note else "missing"))
        elif text == skeleton.learners_copy(exercise):
            results.append(grading.without_points(exercise, "not started"))
        else:
            results.append(grading.grade(exercise, text, court))
        results[-1].notes += [note] if note else []
    return results


def row(student, results):
    remarks = [f"{r.exercise.name}: {r.status}" for r in results if r.status in ("missing", "does not compile", "cannot be read")]
    remarks += [f"{r.exercise.name}: failed {', '.join(v.check.name for v in r.verdicts if v.status == 'failed')}" for r in results if any(v.status == "failed" for v in r.verdicts)]
    remarks += [f"{r.exercise.name}: {note}" for r in results for note in r.notes]
    return [student, *(r.points for r in results), sum(r.points for r in results), sum(r.exercise.points for r in results), "; ".join(remarks)]


def write(file, rows):
    """All rows, in place of whatever is there: a student's program may have been there."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    grading.put(file, text.getvalue().encode(), file.parent)


def grade_class(folder, exercises, court, file, say=print):
    """Returns whether there was anybody. The CSV is written anew after each student, from memory: an interrupted class keeps what is there."""
    # Everything is read before anything runs: no student's program can change what another one handed in.
    students = {path.name: collect(path, exercises) for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")}
    file, rows = pathlib.Path(file).resolve(), [["student", *(e.name for e in exercises), "points", "of", "remarks"]]
    write(file, rows)
    for student, texts in students.items():
        rows.append(row(student, grade_student(texts, exercises, court)))
        write(file, rows)
        say(f"  {student:<24} {rows[-1][-3]:>4} of {rows[-1][-2]}")
    return bool(students)
