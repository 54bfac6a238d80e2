import json


async def test_list(jp_fetch, record):
    record("0001-fit", settings={"lr": 0.1}).steps(50).checked(0.5).ended(loss=1.0, val_loss=0.5)
    record("0002-fit", settings={"lr": 0.2}).steps(50)
    r = await jp_fetch("workbench", "api", "runs")
    page = json.loads(r.body)
    print(json.dumps(page, indent=1))
    assert [row["run"] for row in page["rows"]] == ["0002-fit", "0001-fit"]
    key = page["rows"][0]["root"]
    r = await jp_fetch("workbench", "api", "runs", key, "0002-fit")
    print(r.body.decode()[:3000])


async def test_canvas(jp_fetch, jp_ws_fetch, record):
    rec = record("0001-fit").steps(50)
    page = json.loads((await jp_fetch("workbench", "api", "runs")).body)
    ws = await jp_ws_fetch("workbench", "api", "canvas", params={"root": page["rows"][0]["root"], "run": "0001-fit"})
    print((await ws.read_message())[:600])
    rec.steps(20)
    print((await ws.read_message())[:600])
    ws.close()
    ev = await jp_ws_fetch("workbench", "api", "events")
    print(await ev.read_message())
    rec.steps(20).ended()
    for _ in range(2):
        print(await ev.read_message())
    ev.close()
