WITH times AS (
  SELECT log, job, MAX(team) AS team, MAX(zone) AS zone, MAX(accelerator) AS accelerator,
    SUM(CASE WHEN bucket <> 'EXCLUDED' THEN CAST(ns AS DECIMAL(38, 0)) END) AS job_ns,
    SUM(CASE WHEN bucket = 'PRODUCTIVE' THEN CAST(ns AS DECIMAL(38, 0)) END) AS productive_ns,
    SUM(CASE WHEN bucket = 'UNPRODUCTIVE_CHECKPOINT_SAVE_TIME' THEN CAST(ns AS DECIMAL(38, 0)) END) AS save_ns,
    SUM(CASE WHEN bucket = 'PROGRAM_STARTUP' THEN CAST(ns AS DECIMAL(38, 0)) END) AS startup_ns,
    SUM(CASE WHEN bucket <> 'EXCLUDED' THEN CAST(chip_ns AS DECIMAL(38, 0)) END) AS chip_ns,
    SUM(CASE WHEN bucket <> 'EXCLUDED' THEN CAST(cost AS DECIMAL(38, 0)) END) AS cost
  FROM facts
  GROUP BY log, job
),
lives AS (
  SELECT log, job, COUNT(*) AS stepping_attempts,
    SUM(CAST(end_ns - first_step_ns AS DECIMAL(38, 0))) AS uptime_ns,
    SUM(CAST(steps_kept + steps_lost AS DECIMAL(38, 0))) AS steps_made
  FROM attempts
  WHERE first_step_ns IS NOT NULL
  GROUP BY log, job
),
ends AS (
  SELECT disruptions.log, disruptions.job, COUNT(*) AS disruptions,
    SUM(CASE WHEN attempts.ended <> 'job end recorded' THEN CAST(1 AS DECIMAL(38, 0)) END) AS failures,
    SUM(CAST(
      disruptions.infrastructure_ns + disruptions.init_ns + disruptions.restore_ns + disruptions.data_loading_ns
      + disruptions.startup_ns AS DECIMAL(38, 0)
    )) AS restart_ns
  FROM disruptions
  INNER JOIN attempts
    ON attempts.log = disruptions.log AND attempts.job = disruptions.job AND attempts.attempt = disruptions.attempt
  GROUP BY disruptions.log, disruptions.job
)
SELECT times.log, times.job, times.team, times.zone, times.accelerator,
  jobs.saves, jobs.steps_kept, lives.stepping_attempts, lives.steps_made, lives.uptime_ns,
  COALESCE(ends.disruptions, 0) AS disruptions,
  COALESCE(ends.failures, 0) AS failures,
  COALESCE(ends.restart_ns, 0) AS restart_ns,
  COALESCE(times.job_ns, 0) AS job_ns,
  COALESCE(times.productive_ns, 0) AS productive_ns,
  COALESCE(times.save_ns, 0) AS save_ns,
  COALESCE(times.startup_ns, 0) AS startup_ns,
  COALESCE(times.chip_ns, 0) AS chip_ns,
  COALESCE(times.cost, 0) AS cost
FROM times
INNER JOIN jobs ON jobs.log = times.log AND jobs.job = times.job
INNER JOIN lives ON lives.log = times.log AND lives.job = times.job
LEFT JOIN ends ON ends.log = times.log AND ends.job = times.job
WHERE jobs.steps_kept > 0
ORDER BY times.log, times.job
