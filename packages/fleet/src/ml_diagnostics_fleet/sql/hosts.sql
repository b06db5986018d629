WITH present AS (
  SELECT facts.accelerator, facts.zone, attempts.log, attempts.job, attempts.attempt, attempts.hosts,
    ARRAY_LENGTH(attempts.hosts) AS host_count,
    CAST(attempts.end_ns - attempts.start_ns AS DECIMAL(38, 0))
      * COALESCE(facts.chips, CAST(ARRAY_LENGTH(attempts.hosts) AS DECIMAL(38, 0))) AS chip_ns
  FROM attempts
  INNER JOIN facts
    ON facts.log = attempts.log AND facts.job = attempts.job AND facts.attempt = attempts.attempt AND facts.bucket = ''
),
blamed AS (
  SELECT present.accelerator, present.zone, disruptions.cause_host AS host
  FROM disruptions
  INNER JOIN present
    ON present.log = disruptions.log AND present.job = disruptions.job AND present.attempt = disruptions.attempt
  WHERE disruptions.cause_host IS NOT NULL AND disruptions.confidence IN ('likely', 'proven')
)
SELECT accelerator, zone, each_host.host, host_count, SUM(CAST(chip_ns AS DECIMAL(38, 0))) AS chip_ns, 0 AS blamed
FROM present
CROSS JOIN UNNEST(present.hosts) AS each_host(host)
GROUP BY accelerator, zone, each_host.host, host_count
UNION ALL
SELECT accelerator, zone, host, 1 AS host_count, CAST(0 AS DECIMAL(38, 0)) AS chip_ns, COUNT(*) AS blamed
FROM blamed
GROUP BY accelerator, zone, host
ORDER BY 1, 2, 3, 4, 6
