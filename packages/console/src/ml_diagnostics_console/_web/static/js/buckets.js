// The kinds of wall time: their order, their names for people and for the style sheet. Answers name them as the
// ledger does.

const BUCKETS = [
  ["PRODUCTIVE", "productive", "Productive"],
  ["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION", "infrastructure-recovery", "Infrastructure recovery"],
  ["WASTED_PROGRESS_FROM_DISRUPTION", "wasted-progress", "Wasted progress"],
  ["ELASTIC_SLICE_DOWN", "elastic-slice-down", "Slice down"],
  ["ELASTIC_SCALE_UP", "elastic-scale-up", "Scale up"],
  ["ELASTIC_REINITIALIZATION", "elastic-reinitialization", "Elastic reinitialization"],
  ["TPU_INITIALIZATION", "tpu-initialization", "Device initialization"],
  ["TRAINING_PREP", "training-prep", "Training preparation"],
  ["PROGRAM_STARTUP", "program-startup", "Program startup"],
  ["DATA_LOADING_SYNC", "data-loading-sync", "Data loading"],
  ["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME", "checkpoint-save", "Checkpoint save"],
  ["UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME", "checkpoint-restore", "Checkpoint restore"],
  ["CUSTOM_BADPUT_EVENTS", "custom", "Custom badput"],
  ["IN_FLIGHT_STEP", "in-flight", "Step in flight"],
  ["UNKNOWN", "unknown", "Unknown"],
  ["EXCLUDED", "excluded", "Excluded"],
];

const SLUGS = new Map();
const TITLES = new Map();
for (const [name, slug, title] of BUCKETS) {
  for (const form of [name, slug, slug.replaceAll("-", "_"), slug.replaceAll("-", "_").toUpperCase()]) {
    SLUGS.set(form, slug);
    TITLES.set(form, title);
  }
}

/** All buckets in the order of drawing, by the names of the style sheet. */
export const BUCKET_ORDER = BUCKETS.map(([, slug]) => slug);

/** Return a bucket's name in the style sheet: "wasted-progress"; "unknown" for one that is not known. */
export function bucketSlug(name) {
  return SLUGS.get(name) ?? "unknown";
}

/** Return a bucket's name for people: "Wasted progress". */
export function bucketTitle(name) {
  return TITLES.get(name) ?? String(name);
}

/** Return the custom property of a bucket's colour: "var(--bucket-wasted-progress)". */
export function bucketColour(name) {
  return `var(--bucket-${bucketSlug(name)})`;
}
