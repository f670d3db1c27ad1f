"""What the learner sees."""
import sys
import textwrap

WIDTH = 110


def colour(code, text):
    return f"\033[{code}m{text}\033[0m" if sys.stdout.isatty() else text


def wrapped(label, text, indent):
    return textwrap.fill(text, WIDTH, initial_indent=" " * indent + label, subsequent_indent=" " * (indent + len(label)), break_long_words=True)


def details(result, second_hints, seed):
    """All checks of one exercise."""
    e = result.exercise
    print(f"\n{colour(1, f'{e.name}: {e.title}')}   {result.points} of {e.points} points")
    if result.status == "does not compile":
        print("  it does not compile:")
        for line in result.compiler.splitlines()[:15]:
            print("    " + line[:200])
        return
    for verdict in result.verdicts:
        mark = {"passed": colour(32, "passed     "), "failed": colour(31, "failed     ")}.get(verdict.status, "not reached")
        print(f"  {mark}  {verdict.check.name:<16} {verdict.points} of {verdict.check.points}")
        if verdict.status == "failed":
            print(wrapped("seen: ", f"on {verdict.where} rank{'s' if verdict.where > 1 else ''}: {verdict.seen}", 6))
            print(wrapped("hint: ", verdict.hint, 6))
            if second_hints and verdict.more:
                print(wrapped("more: ", verdict.more, 6))
    for note in result.notes:
        print(wrapped("note: ", note, 2))
    if result.status != "done":
        said = [line for line in result.output.splitlines() if line.strip() and not line.startswith(("07_challenge/judge:", "backend "))][-6:]
        if said:
            print("  it printed, at the end:")
            for line in said:
                print("    " + line[:160])
        print(f"  the lesson: {e.lesson}   the same hidden inputs again: --seed {seed}" + ("" if second_hints else "   a second hint: --hint"))


def table(results, progress):
    """One line per exercise, the sum, and what to do next."""
    width = max(len(r.exercise.name) for r in results)
    print(f"\n  {'exercise':<{width}}  points    status            so far")
    print(f"  {'-' * width}  --------  ----------------  ----------------")
    for r in results:
        history = (progress.history(r.exercise.name) if progress else [])
        if not history or history[-1] != r.points:
            history = [*history, r.points]
        path = " > ".join(map(str, history[-6:])) if len(history) > 1 else ""
        change = history[-1] - history[-2] if len(history) > 1 else 0
        score = f"{r.points:>2} of {r.exercise.points}"
        line = f"  {r.exercise.name:<{width}}  {score:<8}  {r.status:<16}  {path}{f'   ({change:+d})' if change else ''}".rstrip()
        print(colour(32, line) if r.status == "done" else line)
    print(f"  {'-' * width}  --------")
    print(f"  {'all':<{width}}  {sum(r.points for r in results)} of {sum(r.exercise.points for r in results)}")


def next_step(results, folder, flags):
    todo = [r for r in results if r.status != "done"]
    if not todo:
        print("\nAll points. Well done.")
        return
    r = next((r for r in todo if r.status != "not started"), todo[0])
    verb = "Begin with" if all(r.status == "not started" for r in results) else "Go on with"
    print(f"\n{verb} {folder / (r.exercise.name + '.cpp')} (about {r.exercise.minutes} minutes): look for TODO, then ./scripts/grade.sh {r.exercise.name}{flags}")


def listing(exercises):
    for e in exercises:
        print(f"  {e.name:<20} {e.minutes:>3} min  {e.points} points  {e.title}; {e.needs}")
