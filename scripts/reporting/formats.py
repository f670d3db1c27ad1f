"""One report as a self-contained HTML page, as Markdown, or its tables as LaTeX."""
import base64
import html

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; background: #fff }
h1 { font-size: 1.7rem } h2 { font-size: 1.25rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; padding-bottom: .2rem } h3 { font-size: 1rem }
table { border-collapse: collapse; font-size: .88rem; margin: .6rem 0 } th, td { padding: .25rem .7rem; text-align: left; border-bottom: 1px solid #e4e4e4; vertical-align: top }
th { border-bottom: 2px solid #999 } .wide { overflow-x: auto } figure { margin: 1.6rem 0 } figure img { max-width: 100%; height: auto }
figcaption, .note { font-size: .86rem; color: #444 } .bad { color: #a00000; font-weight: 600 } li { margin: .25rem 0 }
@media print { body { max-width: none; margin: 0 } figure, table { break-inside: avoid } }
"""
# The page may load nothing and run nothing: images are inside it.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def html_table(table):
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>\n" for row in table.rows)
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    return f'<h3>{html.escape(table.title)}</h3>\n<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>{note}\n'


def html_list(texts, empty, bad=False):
    if not texts:
        return f"<p>{html.escape(empty)}</p>\n"
    mark = ' class="bad"' if bad else ""
    return f"<ul{mark}>\n" + "".join(f"<li>{html.escape(text)}</li>\n" for text in texts) + "</ul>\n"


def html_figure(name, title, caption, png):
    data = base64.b64encode(png).decode()
    return (f'<figure id="{html.escape(name)}"><img alt="{html.escape(title)}: {html.escape(caption)}" src="data:image/png;base64,{data}">\n'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>\n")


def html_page(report):
    parts = [f"<h1>{html.escape(report.title)}</h1>\n"]
    if report.problems:
        parts.append('<h2>Left out</h2>\n<p class="bad">This report is not whole:</p>\n' + html_list(report.problems, "", bad=True))
    parts.append("<h2>Findings</h2>\n" + html_list(report.findings, "None: the rows show no family of figures."))
    parts.append(f"<h2>{html.escape(report.machine.title)}</h2>\n" + html_table(report.machine).split("</h3>\n", 1)[1])
    if report.paper:
        parts.append("<h2>Methods</h2>\n<p>" + html.escape(report.methods) + "</p>\n" + "".join(map(html_table, report.paper)))
    parts.append("<h2>Figures</h2>\n" + "".join(html_figure(*figure) for figure in report.figures))
    parts.append("<h2>Fits</h2>\n" + html_list(report.fits, "No scaling runs: nothing to fit."))
    parts.append("<h2>Tables</h2>\n" + "".join(map(html_table, report.tables)))
    parts.append("<h2>Figures of others</h2>\n" + html_table(report.published))
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<title>{html.escape(report.title)}</title>\n<style>{STYLE}</style></head>\n'
            f"<body>\n{''.join(parts)}</body></html>\n")


def markdown_cell(cell):
    return str(cell).replace("|", "\\|").replace("\n", " ")


def markdown_table(table):
    lines = [f"### {table.title}", "", "| " + " | ".join(map(markdown_cell, table.header)) + " |", "|" + "---|" * len(table.header)]
    lines += ["| " + " | ".join(map(markdown_cell, row)) + " |" for row in table.rows]
    return "\n".join([*lines, "", *([table.note, ""] if table.note else [])])


def markdown(report, folder):
    """`folder`: where the pictures are, as seen from the file."""
    listed = lambda texts: "\n".join(f"- {text}" for text in texts) or "None."  # noqa: E731
    parts = [f"# {report.title}", *(["## Left out", listed(report.problems)] if report.problems else []), "## Findings", listed(report.findings),
             markdown_table(report.machine).replace("###", "##", 1)]
    if report.paper:
        parts += ["## Methods", report.methods, *map(markdown_table, report.paper)]
    parts += ["## Figures", *(f"![{title}]({folder}/{name}.png)\n\n{caption}" for name, title, caption, _ in report.figures), "## Fits", listed(report.fits), "## Tables",
              *map(markdown_table, report.tables), "## Figures of others", markdown_table(report.published)]
    return "\n\n".join(parts) + "\n"


SPECIAL = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def latex_text(text):
    return "".join(SPECIAL.get(letter, letter) for letter in str(text))


def latex_table(table):
    line = lambda cells: " & ".join(map(latex_text, cells)) + r" \\"  # noqa: E731
    note = f" {latex_text(table.note)}" if table.note else ""
    return "\n".join([r"\begin{table}[htbp]", r"\centering\small", rf"\caption{{{latex_text(table.title)}.{note}}}", rf"\begin{{tabular}}{{{'l' * len(table.header)}}}", r"\toprule",
                      line(table.header), r"\midrule", *map(line, table.rows), r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def latex(report):
    methods = [latex_text(report.methods), ""] if report.paper else []
    return "\n".join(["% Needs \\usepackage{booktabs}. The figures are beside it as PDF: scripts/plot.py.", *methods, *map(latex_table, [report.machine, *report.tables, report.published])])
