// The page of a list of objects of one kind, the worst first. A thousand of them stay quick: rows are made for what is shown.
import type { ComponentChildren } from "preact";
import { some } from "./format";
import { Empty, Head, Table, useMore } from "./parts";
import { go, to, type Route } from "./route";

export interface Column<T> {
  /** Heading, with `wide` if the column is left out on a narrow page. */
  head: string;
  isWide?: boolean;
  cell: (item: T) => ComponentChildren;
}

/** A choice beside the words to look for. It stands in the address under its name. */
export interface Choice<T> {
  name: string;
  label: string;
  options: string[];
  of: (item: T) => string;
}

export interface ListOf<T> {
  /** Page in the address. */
  page: string;
  title: string;
  noun: string;
  items: T[];
  key: (item: T) => string | number;
  /** The words of an item that are looked through. */
  words: (item: T) => string;
  /** Label of the field for them. */
  search: string;
  choice?: Choice<T>;
  /** The worst is the least. */
  rank: (item: T) => number;
  columns: Column<T>[];
  /** Page on which a new one is made. */
  create: string;
  /** What a list without any item says, before the link to make the first one. */
  none: string;
}

export function ListPage<T extends { name: string }>({ route, list }: { route: Route; list: ListOf<T> }) {
  const { page, choice } = list;
  const words = route.query.get("q") ?? "";
  const chosen = choice ? (route.query.get(choice.name) ?? "") : "";
  const found = list.items
    .filter((item) => (!choice || !chosen || choice.of(item) === chosen) && list.words(item).includes(words))
    .sort((a, b) => list.rank(a) - list.rank(b) || (a.name < b.name ? -1 : 1));
  const { shown, more } = useMore(found.length, 100);
  const filter = (change: Record<string, string>) => go(to(page, "", { q: words, ...(choice ? { [choice.name]: chosen } : {}), ...change }), true);
  return (
    <>
      <Head
        title={list.title}
        actions={
          <a class="button" href={to(list.create)}>
            Create a {list.noun}
          </a>
        }
      />
      {list.items.length === 0 ? (
        <Empty>
          {list.none} <a href={to(list.create)}>Create the first one.</a>
        </Empty>
      ) : (
        <>
          <div class="row filters">
            <label>
              {list.search} <input type="search" value={words} onInput={(event) => filter({ q: event.currentTarget.value })} />
            </label>
            {choice && (
              <label>
                {choice.label}{" "}
                <select value={chosen} onChange={(event) => filter({ [choice.name]: event.currentTarget.value })}>
                  <option value="">all</option>
                  {choice.options.map((word) => (
                    <option key={word} value={word}>
                      {word.replace(/-/g, " ")}
                    </option>
                  ))}
                </select>
              </label>
            )}
            <span role="status">{some(found.length, list.noun)} found, the worst first</span>
          </div>
          {found.length === 0 ? (
            <Empty>No {list.noun} is like that.</Empty>
          ) : (
            <Table label={list.title} head={list.columns.map(({ head, isWide }) => (isWide ? [head, "wide"] : head))}>
              {found.slice(0, shown).map((item) => (
                <tr key={list.key(item)}>
                  {list.columns.map(({ head, isWide, cell }) => (
                    <td key={head} class={isWide ? "wide" : undefined}>
                      {cell(item)}
                    </td>
                  ))}
                </tr>
              ))}
            </Table>
          )}
          {more}
        </>
      )}
    </>
  );
}
