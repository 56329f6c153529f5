"""Write the JSON of every dashboard."""

from orcastream.telemetry.dashboards import DASHBOARDS, DIRECTORY

for dashboard in DASHBOARDS:
    (DIRECTORY / dashboard.file_name).write_text(dashboard.to_json(), encoding="utf-8")
