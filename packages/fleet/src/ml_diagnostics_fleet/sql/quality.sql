WITH known AS (
  SELECT log, job,
    MAX(CASE WHEN chips IS NULL THEN 1 ELSE 0 END) AS is_without_chips,
    MAX(CASE WHEN team = '(none)' THEN 1 ELSE 0 END) AS is_without_team,
    MAX(CASE WHEN chips IS NOT NULL AND cost IS NULL THEN 1 ELSE 0 END) AS is_without_price
  FROM facts
  GROUP BY log, job
)
SELECT jobs.log, jobs.job, jobs.rules,
  jobs.missing, jobs.lost, jobs.skipped,
  CASE WHEN jobs.running THEN 0 ELSE jobs.open_writers END AS open_writers,
  CASE WHEN jobs.start_ns IS NULL THEN 1 ELSE 0 END AS is_without_time,
  COALESCE(known.is_without_chips, 0) AS is_without_chips,
  COALESCE(known.is_without_team, 0) AS is_without_team,
  COALESCE(known.is_without_price, 0) AS is_without_price
FROM jobs
LEFT JOIN known ON known.log = jobs.log AND known.job = jobs.job
WHERE jobs.missing > 0 OR jobs.lost > 0 OR jobs.skipped > 0 OR (jobs.open_writers > 0 AND NOT jobs.running)
  OR jobs.start_ns IS NULL OR jobs.rules LIKE 'error: %' OR known.is_without_chips = 1 OR known.is_without_team = 1
  OR known.is_without_price = 1
ORDER BY jobs.log, jobs.job
