// Fails where a text that a person sees or hears stands outside of src/texts.ts: a literal of several words or with a capital, or
// any word in a place that is shown (a text of el() or setText(), a title, a label, the name of a series), or in a style sheet.
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const source = fileURLToPath(new URL("src/", import.meta.url));
const SENTENCE = /[A-Za-z]{2,}[,:;.]? [A-Za-z]{2,}|^[A-Z][a-z]/;
const WORD = /[A-Za-z]{2,}/;
const SHOWN = new Set(["title", "aria-label", "aria-valuetext", "aria-roledescription", "placeholder", "name", "label", "up", "text", "reason"]);
/** Class names, selectors, markup, fonts, colours, media queries, and key names, which are no words. */
const CODE = /wb-|^bench\.|^linear-gradient|^[.#:[]|[<>{}="]|px|system-ui|^rgb|^\(|^(Arrow|Page|Escape|Enter|Home|End|Infinity|NaN)|^(PNG|SVG|CSV)$|aria-|^(button|text|submit|checkbox|search|range)$/;

/** The text that a literal has, without what is computed in it. */
const textOf = (node) => (ts.isTemplateExpression(node) ? [node.head, ...node.templateSpans.map((span) => span.literal)].map((part) => part.text).join("\0") : node.text);

/** Whether an expression stands where it is shown: also as a branch of a condition, or beside another text. */
function isShown(node) {
  const { parent } = node;
  if (ts.isConditionalExpression(parent) ? parent.condition !== node : ts.isParenthesizedExpression(parent)) return isShown(parent);
  if (ts.isBinaryExpression(parent) && parent.right === node && ts.isPropertyAccessExpression(parent.left)) return ["title", "textContent", "innerText"].includes(parent.left.name.text);
  if (ts.isBinaryExpression(parent) && ["??", "||", "&&", "+"].includes(parent.operatorToken.getText())) return isShown(parent);
  if (ts.isPropertyAssignment(parent)) return parent.initializer === node && SHOWN.has(parent.name.text);
  if (!ts.isCallExpression(parent) && !ts.isNewExpression(parent)) return false;
  const called = parent.expression.getText().split(".").at(-1);
  const place = (parent.arguments ?? []).indexOf(node);
  if (called === "el") return place === 2;
  if (called === "setAttribute") return place === 1 && SHOWN.has(parent.arguments[0].text);
  return { setText: [1], toggle: [0, 1], setCaption: [0], setAt: [0], setValue: [0, 1], createTextNode: [0], Card: [0, 1], fillText: [0], svgOf: [1], csvOf: [0], DragHandle: [2] }[called]?.includes(place) ?? false;
}

function textsIn(path) {
  const file = ts.createSourceFile(path, readFileSync(source + path, "utf8"), ts.ScriptTarget.Latest, true);
  const found = [];
  const visit = (node) => {
    if (ts.isImportDeclaration(node) || ts.isLiteralTypeNode(node) || (ts.isCallExpression(node.parent ?? node) && /querySelector|closest$/.test(node.parent?.expression?.getText() ?? "") && node.parent.expression !== node)) return;
    if (ts.isStringLiteral(node) || ts.isNoSubstitutionTemplateLiteral(node) || ts.isTemplateExpression(node)) {
      const text = textOf(node);
      if (!CODE.test(text) && (SENTENCE.test(text) || (WORD.test(text) && isShown(node)))) {
        found.push(`${path}:${file.getLineAndCharacterOfPosition(node.getStart()).line + 1}: ${node.getText()}`);
      }
    }
    ts.forEachChild(node, visit);
  };
  visit(file);
  return found;
}

const files = readdirSync(source, { recursive: true });
const found = [
  ...files.filter((path) => path.endsWith(".ts") && path !== "texts.ts").flatMap(textsIn),
  ...files.filter((path) => path.endsWith(".css")).flatMap((path) => (readFileSync(source + path, "utf8").match(/content: "[^"]*[A-Za-z]{2}[^"]*"/g) ?? []).map((text) => `${path}: ${text}`)),
];
if (found.length) {
  console.error(`Texts that a person sees belong into src/texts.ts:\n${found.join("\n")}`);
  process.exit(1);
}
