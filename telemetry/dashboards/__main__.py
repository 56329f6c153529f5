"""Write the JSON of every dashboard."""

from orcastream.telemetry.dashboards import files

for path, text in files():
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
