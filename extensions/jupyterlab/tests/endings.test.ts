import assert from "node:assert/strict";
import { mock, test } from "node:test";
import type { Row } from "../src/messages";
import { Endings } from "../src/status/endings";
import { row } from "./rows";

function gathered() {
  mock.timers.enable({ apis: ["setTimeout"] });
  const told: [string[], boolean][] = [];
  const person = { away: false };
  const endings = new Endings(() => person.away, (rows: Row[], more) => told.push([rows.map(({ run }) => run), more]));
  const end = (...runs: string[]) => {
    for (const run of runs) endings.add(row(run));
    mock.timers.tick(2000);
  };
  return { told, person, endings, end };
}

test("runs that end within two seconds are told together", () => {
  const { told, end } = gathered();
  end("0001-fit", "0002-fit");
  end("0003-fit");
  assert.deepEqual(told, [[["0001-fit", "0002-fit"], false], [["0003-fit"], false]]);
  mock.timers.reset();
});

test("while the person is away it is one piece of news, which has all", () => {
  const { told, person, endings, end } = gathered();
  person.away = true;
  end("0001-fit");
  end("0002-fit", "0003-fit");
  assert.deepEqual(told, [[["0001-fit"], false], [["0001-fit", "0002-fit", "0003-fit"], true]]);
  person.away = false;
  endings.seen();
  person.away = true;
  end("0004-fit");
  assert.deepEqual(told.at(-1), [["0004-fit"], false]);
  mock.timers.reset();
});
