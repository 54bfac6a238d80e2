import assert from "node:assert/strict";
import { test } from "node:test";
import { PendingDeletions } from "../src/runs/pending-deletions";
import type { Ref } from "../src/messages";

const ref = (run: string): Ref => ({ root: "a", run });

/** Deletions, and the promise of the next change. */
function deletionsOf(remove: (refs: Ref[]) => Promise<unknown>, wait = 0) {
  const deletions = new PendingDeletions(remove, wait);
  const next = () => new Promise<void>((yes) => {
    const heard = () => (deletions.changed.disconnect(heard), yes());
    deletions.changed.connect(heard);
  });
  return { deletions, next };
}

test("runs are deleted after a while, and leave what is pending", async () => {
  const gone: string[] = [];
  const { deletions, next } = deletionsOf(async (refs) => void gone.push(...refs.map(({ run }) => run)));
  deletions.add([ref("1"), ref("2")]);
  deletions.add([ref("2")]); // it is being deleted already
  assert.equal(deletions.pending.length, 1);
  assert.ok(deletions.has(ref("2")) && !deletions.has({ root: "b", run: "2" }));
  await next();
  assert.deepEqual(gone, ["1", "2"]);
  assert.equal(deletions.pending.length, 0);
});

test("an undone deletion deletes nothing, and the others go on", async () => {
  const gone: string[] = [];
  const { deletions, next } = deletionsOf(async (refs) => void gone.push(...refs.map(({ run }) => run)));
  deletions.add([ref("1")]);
  deletions.add([ref("2")]);
  deletions.undo(deletions.pending[0]!);
  assert.ok(!deletions.has(ref("1")));
  await next();
  assert.deepEqual(gone, ["2"]);
});
