// A part of the page as one file that needs no other: plots become pictures, and what is only for the screen is left out.

/** HTML of the element with the styles and colours of the page. */
export function standalone(element: HTMLElement, title: string): string {
  // A document without a window loads nothing while the copy is changed.
  const copy = document.implementation.createHTMLDocument("");
  const body = copy.importNode(element, true);
  const places = [...element.querySelectorAll(".canvas")];
  body.querySelectorAll(".canvas").forEach((place, at) => {
    const picture = copy.createElement("img");
    picture.src = places[at]?.querySelector("canvas")?.toDataURL("image/png") ?? "";
    picture.alt = place.closest("figure")?.querySelector("figcaption")?.textContent ?? "";
    place.removeAttribute("aria-hidden");
    place.replaceChildren(picture);
  });
  for (const screen of body.querySelectorAll(".screen")) screen.remove();
  for (const link of body.querySelectorAll("a")) link.removeAttribute("href");
  const heading = copy.createElement("h1");
  heading.textContent = title;
  // The policy of the page forbids a style element in a document of its own, so the head is put together as text.
  const styles = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules].map((rule) => rule.cssText)).join("\n");
  const name = copy.createElement("title");
  name.textContent = title;
  const head = `<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n${name.outerHTML}\n<style>\n${styles}\n</style>`;
  return `<!doctype html>\n<html lang="en" data-theme="${document.documentElement.dataset.theme}">\n<head>\n${head}\n</head>\n<body>\n<main>\n${heading.outerHTML}\n${body.outerHTML}\n</main>\n</body>\n</html>\n`;
}

export function save(text: string, type: string, name: string) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
