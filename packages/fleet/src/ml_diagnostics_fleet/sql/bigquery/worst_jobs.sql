WITH labelled AS (
  SELECT
    jobs.log,
    jobs.job,
    NULLIF(JSON_EXTRACT_SCALAR(jobs.labels, '$.team'), '') AS team,
    NULLIF(JSON_EXTRACT_SCALAR(jobs.labels, '$.owner'), '') AS owner,
    NULLIF(JSON_EXTRACT_SCALAR(jobs.labels, '$.project'), '') AS project,
    NULLIF(JSON_EXTRACT_SCALAR(jobs.labels, '$.zone'), '') AS zone,
    NULLIF(JSON_EXTRACT_SCALAR(jobs.labels, '$.cluster'), '') AS cluster,
    NULLIF(JSON_EXTRACT_SCALAR(jobs.labels, '$.accelerator'), '') AS accelerator
  FROM jobs
), noted AS (
  SELECT
    ledger_rows.log,
    ledger_rows.job,
    ledger_rows.attempt,
    calendar.day_ns,
    calendar.week,
    ledger_rows.bucket,
    ledger_rows.label,
    ledger_rows.ns,
    0 AS steps_kept,
    ledger_rows.as_of_ns
  FROM ledger_rows
  INNER JOIN calendar
    ON calendar.day = ledger_rows.day
  UNION ALL
  SELECT
    attempts.log,
    attempts.job,
    attempts.attempt,
    calendar.day_ns,
    calendar.week,
    '' AS bucket,
    '' AS label,
    0 AS ns,
    attempts.steps_kept,
    jobs.as_of_ns
  FROM attempts
  INNER JOIN calendar
    ON calendar.day_ns = attempts.start_ns - MOD(attempts.start_ns, 86400000000000)
  INNER JOIN jobs
    ON jobs.log = attempts.log AND jobs.job = attempts.job
), timed AS (
  SELECT
    noted.log,
    noted.job,
    noted.attempt,
    noted.day_ns,
    noted.week,
    noted.bucket,
    noted.label,
    noted.ns,
    noted.steps_kept,
    noted.as_of_ns,
    attempts.chips,
    CASE
      WHEN attempts.start_ns > noted.day_ns
      THEN attempts.start_ns
      ELSE noted.day_ns
    END AS moment_ns
  FROM noted
  INNER JOIN attempts
    ON attempts.log = noted.log
    AND attempts.job = noted.job
    AND attempts.attempt = noted.attempt
), described AS (
  SELECT
    timed.log,
    timed.job,
    timed.attempt,
    timed.day_ns,
    timed.week,
    timed.bucket,
    timed.label,
    timed.as_of_ns,
    timed.moment_ns,
    CAST(timed.ns AS BIGNUMERIC) AS ns,
    CAST(timed.steps_kept AS BIGNUMERIC) AS steps_kept,
    COALESCE(NULLIF(job_dimensions.team, ''), labelled.team, '(none)') AS team,
    COALESCE(NULLIF(job_dimensions.owner, ''), labelled.owner, '(none)') AS owner,
    COALESCE(NULLIF(job_dimensions.project, ''), labelled.project, '(none)') AS project,
    COALESCE(NULLIF(job_dimensions.zone, ''), labelled.zone, '(none)') AS zone,
    COALESCE(NULLIF(job_dimensions.cluster, ''), labelled.cluster, '(none)') AS cluster,
    COALESCE(NULLIF(job_dimensions.accelerator, ''), labelled.accelerator, '(none)') AS accelerator,
    COALESCE(job_dimensions.spot, FALSE) AS spot,
    CAST(COALESCE(job_dimensions.chips, timed.chips) AS BIGNUMERIC) AS chips
  FROM timed
  INNER JOIN labelled
    ON labelled.log = timed.log AND labelled.job = timed.job
  LEFT JOIN job_dimensions
    ON job_dimensions.log = timed.log
    AND job_dimensions.job = timed.job
    AND timed.moment_ns >= job_dimensions.valid_from_ns
    AND timed.moment_ns < job_dimensions.valid_to_ns
), facts AS (
  SELECT
    described.log,
    described.job,
    described.attempt,
    described.day_ns,
    described.week,
    described.bucket,
    described.label,
    described.as_of_ns,
    described.ns,
    described.steps_kept,
    described.team,
    described.owner,
    described.project,
    described.zone,
    described.cluster,
    described.accelerator,
    described.spot,
    described.chips,
    described.ns * described.chips AS chip_ns,
    described.ns * described.chips * CAST(prices.micro_per_chip_hour AS BIGNUMERIC) AS cost
  FROM described
  LEFT JOIN prices
    ON prices.accelerator = described.accelerator
    AND prices.zone = described.zone
    AND prices.spot = described.spot
    AND described.moment_ns >= prices.valid_from_ns
    AND described.moment_ns < prices.valid_to_ns
), by_job AS (
  SELECT
    log,
    job,
    MAX(team) AS team,
    MAX(zone) AS zone,
    MAX(accelerator) AS accelerator,
    MAX(chips) AS chips,
    SUM(CASE WHEN bucket <> 'EXCLUDED' THEN CAST(ns AS BIGNUMERIC) END) AS job_ns,
    SUM(CASE WHEN bucket = 'PRODUCTIVE' THEN CAST(ns AS BIGNUMERIC) END) AS productive_job_ns,
    SUM(CASE WHEN bucket <> 'EXCLUDED' THEN CAST(chip_ns AS BIGNUMERIC) END) AS chip_ns,
    SUM(CASE WHEN bucket = 'PRODUCTIVE' THEN CAST(chip_ns AS BIGNUMERIC) END) AS productive_chip_ns,
    SUM(CASE WHEN bucket <> 'EXCLUDED' THEN CAST(cost AS BIGNUMERIC) END) AS cost,
    SUM(CASE WHEN bucket = 'PRODUCTIVE' THEN CAST(cost AS BIGNUMERIC) END) AS productive_cost
  FROM facts
  GROUP BY
    log,
    job
)
SELECT
  by_job.log,
  by_job.job,
  by_job.team,
  by_job.zone,
  by_job.accelerator,
  by_job.chips,
  jobs.attempts,
  jobs.disruptions,
  COALESCE(by_job.job_ns, 0) AS job_ns,
  COALESCE(by_job.productive_job_ns, 0) AS productive_job_ns,
  COALESCE(by_job.chip_ns, 0) AS chip_ns,
  COALESCE(by_job.productive_chip_ns, 0) AS productive_chip_ns,
  COALESCE(by_job.cost, 0) AS cost,
  COALESCE(by_job.productive_cost, 0) AS productive_cost
FROM by_job
INNER JOIN jobs
  ON jobs.log = by_job.log AND jobs.job = by_job.job
ORDER BY
  COALESCE(by_job.cost, 0) - COALESCE(by_job.productive_cost, 0) DESC,
  COALESCE(by_job.chip_ns, 0) - COALESCE(by_job.productive_chip_ns, 0) DESC,
  by_job.log NULLS LAST,
  by_job.job NULLS LAST
