"""Pages of jobs: the list, one job, the launch form. They join jobs, plans and
backfill."""
