// Promises whose results are ignored once they are no longer needed.

/** Calls back with what a promise comes to, `found` or `failed`; what is returned stops both: what
 * an effect asked for is nobody's business once another head or text is shown, its failure too. */
export function whileWanted<Value>(
  promise: Promise<Value>,
  found: (value: Value) => void,
  failed: (error: Error) => void,
): () => void {
  let wanted = true;
  promise.then(
    (value) => {
      if (wanted) found(value);
    },
    (error) => {
      if (wanted) failed(error);
    },
  );
  return () => {
    wanted = false;
  };
}
