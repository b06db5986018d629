WITH by_job AS (
  SELECT group_columns, log, job,
    SUM(CASE WHEN bucket <> 'EXCLUDED' THEN CAST(ns AS DECIMAL(38, 0)) END) AS job_ns,
    SUM(CASE WHEN bucket = 'PRODUCTIVE' THEN CAST(ns AS DECIMAL(38, 0)) END) AS productive_job_ns,
    SUM(CASE WHEN bucket <> 'EXCLUDED' THEN CAST(chip_ns AS DECIMAL(38, 0)) END) AS chip_ns,
    SUM(CASE WHEN bucket = 'PRODUCTIVE' THEN CAST(chip_ns AS DECIMAL(38, 0)) END) AS productive_chip_ns,
    SUM(CASE WHEN bucket <> 'EXCLUDED' THEN CAST(cost AS DECIMAL(38, 0)) END) AS cost,
    SUM(CASE WHEN bucket = 'PRODUCTIVE' THEN CAST(cost AS DECIMAL(38, 0)) END) AS productive_cost,
    SUM(CASE WHEN bucket <> 'EXCLUDED' AND cost IS NULL THEN CAST(chip_ns AS DECIMAL(38, 0)) END) AS unpriced_chip_ns,
    SUM(CAST(steps_kept AS DECIMAL(38, 0))) AS steps_kept,
    MAX(CASE WHEN chips IS NULL THEN 1 ELSE 0 END) AS is_without_chips
  FROM facts
  GROUP BY group_columns, log, job
)
SELECT group_columns,
  COUNT(*) AS jobs,
  SUM(CAST(is_without_chips AS DECIMAL(38, 0))) AS jobs_without_chips,
  COALESCE(SUM(CAST(job_ns AS DECIMAL(38, 0))), 0) AS job_ns,
  COALESCE(SUM(CAST(productive_job_ns AS DECIMAL(38, 0))), 0) AS productive_job_ns,
  COALESCE(SUM(CAST(chip_ns AS DECIMAL(38, 0))), 0) AS chip_ns,
  COALESCE(SUM(CAST(productive_chip_ns AS DECIMAL(38, 0))), 0) AS productive_chip_ns,
  COALESCE(SUM(CAST(cost AS DECIMAL(38, 0))), 0) AS cost,
  COALESCE(SUM(CAST(productive_cost AS DECIMAL(38, 0))), 0) AS productive_cost,
  COALESCE(SUM(CAST(unpriced_chip_ns AS DECIMAL(38, 0))), 0) AS unpriced_chip_ns,
  COALESCE(SUM(CAST(steps_kept AS DECIMAL(38, 0))), 0) AS steps_kept
FROM by_job
GROUP BY group_columns
ORDER BY group_columns
