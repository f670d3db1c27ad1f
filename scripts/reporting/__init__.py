"""What report.py is made of: fits, findings, tables, the paper's checklist, and one writer per format."""
