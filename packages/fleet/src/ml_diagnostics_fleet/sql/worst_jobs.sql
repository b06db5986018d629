WITH by_job AS (
  SELECT log, job,
    MAX(team) AS team, MAX(zone) AS zone, MAX(accelerator) AS accelerator, MAX(chips) AS chips,
    SUM(CASE WHEN bucket <> 'EXCLUDED' THEN CAST(ns AS DECIMAL(38, 0)) END) AS job_ns,
    SUM(CASE WHEN bucket = 'PRODUCTIVE' THEN CAST(ns AS DECIMAL(38, 0)) END) AS productive_job_ns,
    SUM(CASE WHEN bucket <> 'EXCLUDED' THEN CAST(chip_ns AS DECIMAL(38, 0)) END) AS chip_ns,
    SUM(CASE WHEN bucket = 'PRODUCTIVE' THEN CAST(chip_ns AS DECIMAL(38, 0)) END) AS productive_chip_ns,
    SUM(CASE WHEN bucket <> 'EXCLUDED' THEN CAST(cost AS DECIMAL(38, 0)) END) AS cost,
    SUM(CASE WHEN bucket = 'PRODUCTIVE' THEN CAST(cost AS DECIMAL(38, 0)) END) AS productive_cost
  FROM facts
  GROUP BY log, job
)
SELECT by_job.log, by_job.job, by_job.team, by_job.zone, by_job.accelerator, by_job.chips,
  jobs.attempts, jobs.disruptions,
  COALESCE(by_job.job_ns, 0) AS job_ns,
  COALESCE(by_job.productive_job_ns, 0) AS productive_job_ns,
  COALESCE(by_job.chip_ns, 0) AS chip_ns,
  COALESCE(by_job.productive_chip_ns, 0) AS productive_chip_ns,
  COALESCE(by_job.cost, 0) AS cost,
  COALESCE(by_job.productive_cost, 0) AS productive_cost
FROM by_job
INNER JOIN jobs ON jobs.log = by_job.log AND jobs.job = by_job.job
ORDER BY COALESCE(by_job.cost, 0) - COALESCE(by_job.productive_cost, 0) DESC,
  COALESCE(by_job.chip_ns, 0) - COALESCE(by_job.productive_chip_ns, 0) DESC, by_job.log, by_job.job
