// As told.py, for node.
export const URL = process.env.OCTAVO_URL;
export const SCRIPTED = process.env.OCTAVO_SCRIPTED === "1";
export const VECTORS = process.env.OCTAVO_VECTORS ?? "";
export const MODEL = "default";
export const FEW = SCRIPTED ? 60 : 12;
export const ORDER = 'call get_weather {"city": "Brno"}';

export function ok(what, holds, seen = "") {
  if (!holds) throw new Error(`${what}: ${JSON.stringify(seen)}`);
  console.log(`ok: ${what}`);
}

export function says(what, text, wanted) {
  ok(what, typeof text === "string" && (!SCRIPTED || text.includes(wanted)), text);
}

export async function run(parts) {
  let failures = 0;
  for (const [name, part] of Object.entries(parts)) {
    try {
      await part();
    } catch (error) {
      failures += 1;
      console.log(`failed: ${name}: ${`${error.name}: ${error.message}`.replace(/\s+/g, " ").slice(0, 300)}`);
    }
  }
  process.exit(failures > 0 ? 1 : 0);
}
